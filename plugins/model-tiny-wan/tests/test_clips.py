"""The data: prompts, rendering and the scores that read it back. No scikit-learn, no checkpoint."""

import pytest
import torch

from wf_plugin_model_tiny_wan import clips, score


def rendered(count: int) -> tuple[torch.Tensor, list[str]]:
    images, labels = clips.load_styles()
    batch = clips.sample_clips(images, labels, count, torch.Generator().manual_seed(7))
    return clips.render(batch).permute(0, 2, 3, 4, 1), batch.prompts()


def test_there_are_280_prompts_and_each_parses_to_what_it_names() -> None:
    prompts = clips.all_prompts()
    assert len(set(prompts)) == 280
    assert clips.parse_prompt("a red 3 moving left") == (0, 3, 0)
    assert clips.parse_prompt(prompts[-1]) == (6, 9, 3)


@pytest.mark.parametrize("text", ["a 3 moving left", "a red 3 moving", "a red blue 3 moving left", ""])
def test_a_prompt_that_is_not_one_clip_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="names"):
        clips.parse_prompt(text)


def test_every_word_of_every_prompt_is_in_the_vocabulary() -> None:
    assert set(" ".join(clips.all_prompts()).split()) <= set(clips.VOCABULARY)


def test_the_handwriting_stays_inside_the_frame() -> None:
    images, labels = clips.load_styles()
    batch = clips.sample_clips(images, labels, 400, torch.Generator().manual_seed(7))
    step = torch.tensor(clips.STEPS)[batch.direction]
    for frame in (0, clips.NUM_FRAMES - 1):
        centre = batch.start + clips.SPEED * frame * step
        assert centre.min() >= clips.DIGIT_EXTENT / 2 - 1e-6
        assert centre.max() <= 1 - clips.DIGIT_EXTENT / 2 + 1e-6


def test_scoring_reads_real_clips_right() -> None:
    video, prompts = rendered(70)
    means = score.score_clips(video, prompts).means()
    assert min(means.values()) >= 0.95, means


def test_scoring_rejects_the_wrong_prompt_and_the_wrong_time_direction() -> None:
    video, prompts = rendered(12)
    shifted = [clips.prompt("white" if " red " in p else "red", "0", "left") for p in prompts]
    assert score.score_clips(video, shifted).colour.float().mean() < 0.2
    assert not score.score_clips(video.flip(1), prompts).direction.any()


def test_an_empty_clip_shows_nothing() -> None:
    reading = score.read_clips(torch.full((1, 5, 64, 64, 3), clips.BACKGROUND))
    assert (reading.colour.item(), reading.digit.item(), reading.direction.item()) == (-1, -1, -1)


def test_scoring_refuses_a_wrong_layout() -> None:
    with pytest.raises(ValueError, match=r"\[B, F, H, W, 3\]"):
        score.read_clips(torch.zeros(1, 5, 3, 64, 64))


def test_clips_are_judged_by_kind_and_a_prompt_that_nobody_understands_is_not() -> None:
    video, prompts = rendered(3)
    right = {"colour": True, "direction": True, "digit": True}
    judged = score.judge_clips([prompts[0], "a cat on a mat", prompts[2]], video)
    assert judged == [right, None, right]
    backwards = score.judge_clips([prompts[0]], video[:1].flip(1))
    assert backwards == [{**right, "direction": False}]


def test_clips_that_are_not_square_are_not_judged() -> None:
    video, prompts = rendered(1)
    assert score.judge_clips(prompts, video[..., :64, :]) == [None]

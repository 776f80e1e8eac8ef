"""What plugins subclass, one base class per kind of technique."""

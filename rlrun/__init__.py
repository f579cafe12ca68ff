"""rlrun trains a language-model agent while people use it; this library is what every part may import."""

__version__ = "0.1.0"

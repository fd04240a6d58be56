"""The modules in which AlphaFold-Multimer differs from AlphaFold 2; all others are shared."""

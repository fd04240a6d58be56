"""Raw features of a target: its sequence, full MSA and templates, before sampling."""

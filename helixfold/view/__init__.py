"""Pictures for notebooks: structures that can be turned, and plots."""

"""Evidence packs: a campaign's target, answers, readings and verdicts in one hashed file that is data only (docs/packs.md)."""

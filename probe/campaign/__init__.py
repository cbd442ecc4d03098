"""Campaigns: many problems, several GPUs and libraries, resumable, nothing lost (docs/campaigns.md)."""

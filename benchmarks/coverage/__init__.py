"""The coverage benchmark: random problems over everything that `probe walk` takes, each walked and proven, counted by family."""

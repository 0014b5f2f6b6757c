"""What Tab offers, for bash, zsh and fish: names on this disk, no network, nothing written."""

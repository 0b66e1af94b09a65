"""What op files share: windows, channel layouts, tiling, broadcasting."""

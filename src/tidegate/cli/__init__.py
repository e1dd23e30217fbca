"""The command `tidegate`: thin modules, one a group, that hand the work to the parts."""

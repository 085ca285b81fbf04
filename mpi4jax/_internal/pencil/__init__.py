"""Arrays that are divided along some axes, and moved to where they are along others."""

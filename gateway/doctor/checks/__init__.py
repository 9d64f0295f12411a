"""Looking at the world, area by area. Each check reads only, and its rules decide about what it saw."""

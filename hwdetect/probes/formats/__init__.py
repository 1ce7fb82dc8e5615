"""Files that only a recording has: exported topologies, system descriptions, machine.json."""

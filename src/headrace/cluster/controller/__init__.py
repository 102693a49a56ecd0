"""The controller: who leads which partition. `machine` decides, `office` writes and hands out the commands."""

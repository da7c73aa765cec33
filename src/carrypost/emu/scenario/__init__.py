"""What is to be emulated: scenario files, their keys, and the files that they name."""

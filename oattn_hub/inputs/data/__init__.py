"""Data that comes with the package; README.md beside this file says where it is from."""

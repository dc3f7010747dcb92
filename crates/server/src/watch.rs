//! Rules that follow their files.

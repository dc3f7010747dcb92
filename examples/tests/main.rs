//! The programs, the snippets of guides, and the guide to choosing an algorithm.

mod clients;
mod guide;
mod programs;
mod snippets;

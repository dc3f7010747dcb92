//! Regions in virtual time: random traces against one ideal bucket, and every order of a small number of steps.

mod rights;
mod search;
mod world;

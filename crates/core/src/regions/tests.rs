//! The record of a region step by step; regions in virtual time: random traces against one ideal bucket, and every order of a small number of steps.

mod ledger;
mod rights;
mod search;
mod world;

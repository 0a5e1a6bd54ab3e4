//! Tests of the whole screen: messages in; effects, watches and pictures out.

mod any_input;
mod charts;
mod convert;
mod keys;
mod logs;
mod nodes;
mod screens;
mod updates;

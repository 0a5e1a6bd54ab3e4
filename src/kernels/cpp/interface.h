// The C interface to Rust.
//
// Inputs are `at::Tensor*`, the type of tch's pointers; outputs are new tensors that Rust owns. No exception crosses into Rust.

#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <optional>

#include "torch_error.h"

// An optional tensor: autograd reads the device of every tensor argument.
using Maybe = std::optional<at::Tensor>;

inline Maybe given(const at::Tensor* t) { return t == nullptr ? Maybe() : Maybe(*t); }

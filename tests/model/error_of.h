// The message of the Error that a call must throw.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tersor/base.h"

namespace tersor::model::testing {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) { return error.what(); }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace tersor::model::testing

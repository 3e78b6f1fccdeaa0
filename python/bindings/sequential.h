#pragma once

#include <pybind11/pybind11.h>

namespace headroom {

/// Adds what headroom.Sequential needs: stages in Python, measured, planned and run by the executor of modules.
void bind_sequential(pybind11::module_& module);

}  // namespace headroom

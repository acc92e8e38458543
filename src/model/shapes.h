// Published configurations by name: models without their files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tersor/model.h"

namespace tersor::model {

/// "llama-3.1-8b" and so on, in the order of the table.
std::vector<std::string> shape_names();
/// The configuration that a model was published with. Throws Error that lists the names there are.
Config config_of_shape(std::string_view name);

}  // namespace tersor::model

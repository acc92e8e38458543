// Tensors of a file that its configuration does not use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::model {

/// The layer that a tensor's name says after `prefix`: 3 of "blk.3.attn_q.weight" after "blk."; empty where it says none.
std::optional<int> layer_of(std::string_view name, std::string_view prefix);

/// What an error says behind the name of a tensor that has no place in the model: that its layer is not among the `layers` that `key`
/// states, or else `otherwise`.
std::string why_unused(std::optional<int> layer, int layers, const std::string& key, const std::string& otherwise);

/// Those that change nothing, in words for `tersor inspect`: "2 tensors that change nothing: a.inv_freq, b.inv_freq"; at most three by
/// name; empty where there are none.
std::string unused_text(const std::vector<std::string>& names);

}  // namespace tersor::model

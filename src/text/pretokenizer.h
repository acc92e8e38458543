// Cutting a text into pieces that merges never cross.
#pragma once

#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tersor/text.h"
#include "text/regex.h"

namespace tersor::text {

/// A chain of steps, compiled. Each step cuts every piece of the step before by itself, so that a pattern sees nothing beyond its piece.
///  - split_regex, split_string: matches and the gaps between them, kept apart or joined as `behaviour` says;
///  - digits: numbers (Unicode N) apart from the rest, each alone or in runs;
///  - byte_level: GPT-2's pattern (use_regex) after putting a space in front (add_prefix_space). Stays last: the byte alphabet itself is
///    never written out, since merges work on the bytes.
class Pretokenizer {
 public:
  /// Throws Error for a pattern that does not compile, and for byte_level that is not last.
  explicit Pretokenizer(std::span<const TokenizerData::Step> steps);

  struct Scratch {
    Regex::Scratch regex;
    std::vector<std::string_view> pieces, next;
    std::deque<std::string> owned;  // pieces that are no part of the text
  };
  /// The pieces of a non-empty text, in scratch.pieces; they point into the text or into scratch.owned.
  void split(std::string_view text, Scratch& scratch) const;

 private:
  using Behaviour = TokenizerData::Step::Behaviour;
  struct Step {
    std::vector<Regex> regex;  // none or one
    Behaviour behaviour = Behaviour::isolated;
    bool invert = false, add_prefix_space = false;
  };
  std::vector<Step> steps_;
};

}  // namespace tersor::text

#include "text/pretokenizer.h"

#include <algorithm>

#include "tersor/base.h"
#include "text/pretokenizer_patterns.h"

namespace tersor::text {
namespace {

using Step = TokenizerData::Step;
using Behaviour = Step::Behaviour;

struct Cut {
  size_t start, end;
  bool match;
};

// Matches and gaps, covering the piece.
void cut_piece(std::string_view piece, const Regex& regex, bool invert, Regex::Scratch& scratch, std::vector<Cut>& cuts) {
  cuts.clear();
  size_t previous = 0;
  regex.for_each(piece, scratch, [&](size_t start, size_t end) {
    if (start != previous) cuts.push_back({previous, start, invert});
    cuts.push_back({start, end, !invert});
    previous = end;
  });
  if (previous != piece.size()) cuts.push_back({previous, piece.size(), invert});
}

void join_cuts(Behaviour behaviour, std::vector<Cut>& cuts) {
  if (behaviour == Behaviour::isolated) return;
  if (behaviour == Behaviour::removed) {
    std::erase_if(cuts, [](const Cut& cut) { return cut.match; });
    return;
  }
  const bool backwards = behaviour == Behaviour::merged_with_next;
  if (backwards) std::reverse(cuts.begin(), cuts.end());
  std::vector<Cut> joined;
  bool previous_match = false;
  for (const Cut& cut : cuts) {
    const bool join = behaviour == Behaviour::contiguous ? cut.match == previous_match : cut.match && !previous_match;
    previous_match = cut.match;
    if (!join || joined.empty()) {
      joined.push_back(cut);
    } else {
      joined.back().start = std::min(joined.back().start, cut.start);
      joined.back().end = std::max(joined.back().end, cut.end);
    }
  }
  if (backwards) std::reverse(joined.begin(), joined.end());
  cuts.swap(joined);
}

}  // namespace

Pretokenizer::Pretokenizer(std::span<const TokenizerData::Step> steps) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const TokenizerData::Step& from = steps[i];
    Step step{.regex = {}, .behaviour = from.behaviour, .invert = from.invert};
    switch (from.kind) {
      case TokenizerData::Step::Kind::split_regex: step.regex.emplace_back(from.pattern); break;
      case TokenizerData::Step::Kind::split_string:
        if (!from.pattern.empty()) step.regex.emplace_back(from.pattern, Regex::Syntax::literal);
        break;
      case TokenizerData::Step::Kind::digits:
        step.regex.emplace_back("\\p{N}");
        step.behaviour = from.individual ? Behaviour::isolated : Behaviour::contiguous;
        step.invert = false;
        break;
      case TokenizerData::Step::Kind::byte_level:
        if (i + 1 != steps.size()) throw Error("the pre-tokenizer step ByteLevel is not the last one, which is not supported");
        if (from.use_regex) step.regex.emplace_back(kGpt2Pattern);
        step.behaviour = Behaviour::isolated;
        step.invert = false;
        step.add_prefix_space = from.add_prefix_space;
        break;
    }
    steps_.push_back(std::move(step));
  }
}

void Pretokenizer::split(std::string_view text, Scratch& scratch) const {
  scratch.owned.clear();
  scratch.pieces.assign(1, text);
  std::vector<Cut> cuts;
  for (const Step& step : steps_) {
    scratch.next.clear();
    for (std::string_view piece : scratch.pieces) {
      if (step.add_prefix_space && !piece.starts_with(' ')) piece = scratch.owned.emplace_back(" ").append(piece);
      if (step.regex.empty()) {
        scratch.next.push_back(piece);
        continue;
      }
      cut_piece(piece, step.regex.front(), step.invert, scratch.regex, cuts);
      join_cuts(step.behaviour, cuts);
      for (const Cut& cut : cuts) {
        if (cut.end > cut.start) scratch.next.push_back(piece.substr(cut.start, cut.end - cut.start));
      }
    }
    scratch.pieces.swap(scratch.next);
  }
}

}  // namespace tersor::text

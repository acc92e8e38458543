#include <array>

#include "tersor/base.h"
#include "tersor/text.h"
#include "text/pretokenizer_patterns.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

using Step = TokenizerData::Step;

Step byte_level(bool use_regex) { return {.kind = Step::Kind::byte_level, .pattern = {}, .use_regex = use_regex}; }

std::vector<Step> with_pattern(std::string_view pattern) {
  return {Step{.kind = Step::Kind::split_regex, .pattern = std::string(pattern)}, byte_level(false)};
}
std::vector<Step> gpt2() { return {byte_level(true)}; }
std::vector<Step> digits_gpt2() { return {Step{.kind = Step::Kind::digits, .pattern = {}}, byte_level(true)}; }
std::vector<Step> llama3() { return with_pattern(kLlama3Pattern); }
std::vector<Step> qwen2() { return with_pattern(kQwen2Pattern); }
std::vector<Step> qwen35() { return with_pattern(kQwen35Pattern); }
std::vector<Step> tekken() { return with_pattern(kTekkenPattern); }

struct Known {
  std::string_view name;
  std::vector<Step> (*steps)();
};

// llama.cpp's names for the rules, one line a rule.
constexpr std::array kKnown{
    Known{"gpt-2", gpt2},
    Known{"gpt2", gpt2},
    Known{"phi-2", gpt2},
    Known{"olmo", gpt2},
    Known{"smollm", digits_gpt2},
    Known{"starcoder", digits_gpt2},
    Known{"refact", digits_gpt2},
    Known{"command-r", digits_gpt2},
    Known{"codeshell", digits_gpt2},
    Known{"exaone", digits_gpt2},
    Known{"llama-bpe", llama3},
    Known{"llama3", llama3},
    Known{"llama-v3", llama3},
    Known{"falcon3", llama3},
    Known{"pixtral", llama3},
    Known{"smaug-bpe", llama3},
    Known{"dbrx", llama3},
    Known{"qwen2", qwen2},
    Known{"deepseek-r1-qwen", qwen2},
    Known{"stablelm2", qwen2},
    Known{"hunyuan", qwen2},
    Known{"qwen35", qwen35},
    Known{"tekken", tekken},
};

}  // namespace

std::vector<TokenizerData::Step> pretokenizer_by_name(std::string_view name) {
  std::string names;
  for (const Known& known : kKnown) {
    if (known.name == name) return known.steps();
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  throw Error("the pre-tokenizer " + show(name) + " is not known; the known ones are " + names);
}

}  // namespace tersor::text

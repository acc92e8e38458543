#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <new>

#include "tersor/base.h"
#include "text/utf8.h"

namespace tersor::text {
namespace {

// Steps and heap (KiB) one match may take: far above any real pattern's need, low enough that a hostile one ends in about a second.
constexpr uint32_t kMatchLimit = 10'000'000, kHeapLimit = 256 * 1024;
constexpr size_t kStackStart = 32 * 1024, kStackMost = 8 * 1024 * 1024;

template <class T, void (*free_it)(T*)>
struct Deleter {
  void operator()(T* pointer) const { free_it(pointer); }
};
template <class T, void (*free_it)(T*)>
using Owned = std::unique_ptr<T, Deleter<T, free_it>>;

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  if (pcre2_get_error_message(code, text, sizeof text) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Scratch::Impl {
  Owned<pcre2_match_data, pcre2_match_data_free> data{pcre2_match_data_create(1, nullptr)};
  Owned<pcre2_match_context, pcre2_match_context_free> context{pcre2_match_context_create(nullptr)};
  Owned<pcre2_jit_stack, pcre2_jit_stack_free> stack{pcre2_jit_stack_create(kStackStart, kStackMost, nullptr)};

  Impl() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMatchLimit);
    pcre2_set_heap_limit(context.get(), kHeapLimit);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Regex::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
Regex::Scratch::~Scratch() = default;

struct Regex::Impl {
  Owned<pcre2_code, pcre2_code_free> code;
  std::string shown;  // for messages
};

Regex::Regex(std::string_view pattern, Syntax syntax) : impl_(std::make_unique<Impl>()) {
  impl_->shown = show(pattern);
  const std::string source = syntax == Syntax::literal ? std::string(pattern) : ruby_to_pcre(pattern);
  const Owned<pcre2_compile_context, pcre2_compile_context_free> context{pcre2_compile_context_create(nullptr)};
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  // In Ruby ^ and $ hold at every line.
  const uint32_t options = PCRE2_UTF | (syntax == Syntax::literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(), options, &error, &offset, context.get()));
  if (!impl_->code) throw Error("the pattern " + impl_->shown + " is not a regular expression that is supported: " + message_of(error));
  // Where memory may not be made executable the interpreter does the same work.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

void Regex::for_each(std::string_view text, Scratch& scratch, const std::function<void(size_t, size_t)>& found) const {
  pcre2_match_data* data = scratch.impl_->data.get();
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  size_t last_end = std::string_view::npos;
  for (size_t at = 0; at <= text.size();) {
    const int rc = pcre2_match(impl_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at, PCRE2_NO_UTF_CHECK, data,
                               scratch.impl_->context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return;
    if (rc < 0) throw Error("the pre-tokenizer pattern " + impl_->shown + " failed on this text: " + message_of(rc));
    const size_t start = range[0], end = range[1];
    if (end < start || end < at)
      throw Error("the pre-tokenizer pattern " + impl_->shown + " moves a match's start or end with \\K, which is not supported");
    if (end > start) {
      found(start, end);
      at = last_end = end;
      continue;
    }
    if (start != last_end) found(start, end);
    last_end = end;
    at = end < text.size() ? end + first_char(text.substr(end)).size : end + 1;
  }
}

}  // namespace tersor::text

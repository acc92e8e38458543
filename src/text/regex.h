// Regular expressions of pre-tokenizers: PCRE2 made to read them as the `tokenizers` library's engine (Oniguruma, Ruby syntax) does.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tersor::text {

/// A compiled pattern; matching is const and thread-safe.
class Regex {
 public:
  enum class Syntax { ruby, literal };

  /// Throws Error for a pattern that does not compile or whose meaning differs between the engines.
  explicit Regex(std::string_view pattern, Syntax syntax = Syntax::ruby);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  /// What one thread needs to match: made once per call of encode, used with any pattern.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Calls found(start, end) for each match from left to right; they do not overlap, and an empty one never touches the one before.
  /// `text` is valid UTF-8. Throws Error when the pattern needs more steps than the limit on this text.
  void for_each(std::string_view text, Scratch& scratch, const std::function<void(size_t, size_t)>& found) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The pattern in PCRE2's syntax with the meaning that Oniguruma gives it (classes \s \S \w \W \h).
std::string ruby_to_pcre(std::string_view pattern);

}  // namespace tersor::text

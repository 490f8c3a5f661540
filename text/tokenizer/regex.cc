#include "text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace somnus {
namespace {

// Real patterns need far less: a few steps per character of one word or one run of spaces. PCRE2's compiled
// code does not count alternatives that the compiler has unrolled, so that a hostile pattern can run on.
// Patterns come from the checkpoint alone, which the operator chooses (docs/security.md); a client's pattern
// must not run here.
constexpr uint32_t kMatchLimit = 20'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

constexpr char kSpaceSet[] =
    "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}";
constexpr char kWordSet[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

// Returns the set that stands for an escape, or nullptr when PCRE2 reads the escape as Oniguruma does.
const char* EscapeSet(char escape) {
  switch (escape) {
    case 's':
    case 'S':
      return kSpaceSet;
    case 'w':
    case 'W':
      return kWordSet;
    case 'h':
    case 'H':
      return "0-9A-Fa-f";
    default:
      return nullptr;
  }
}

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : in_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (pos_ < in_.size()) {
      if (in_[pos_] == '\\') {
        RETURN_IF_ERROR(Escape(false));
      } else if (in_[pos_] == '[') {
        RETURN_IF_ERROR(Set());
      } else if (in_.substr(pos_, 2) == "(?") {
        Group();
      } else {
        out_ += in_[pos_++];
      }
    }
    return std::move(out_);
  }

 private:
  absl::Status Escape(bool in_set) {
    if (pos_ + 1 >= in_.size()) return absl::InvalidArgumentError("pattern ends in a backslash");
    const char escape = in_[pos_ + 1];
    const char* set = EscapeSet(escape);
    pos_ += 2;
    if (set == nullptr) {
      absl::StrAppend(&out_, "\\", std::string(1, escape));
    } else if (!in_set) {
      absl::StrAppend(&out_, escape >= 'a' ? "[" : "[^", set, "]");
    } else if (escape >= 'a') {
      out_ += set;
    } else {
      // PCRE2's own escape differs little, and a set cannot be negated within a set.
      absl::StrAppend(&out_, "\\", std::string(1, escape));
    }
    return absl::OkStatus();
  }

  absl::Status Set() {
    out_ += in_[pos_++];
    if (Peek('^')) out_ += in_[pos_++];
    if (Peek(']')) {
      out_ += "\\]";
      ++pos_;
    }
    while (pos_ < in_.size() && in_[pos_] != ']') {
      if (in_[pos_] == '\\') {
        RETURN_IF_ERROR(Escape(true));
      } else if (in_.substr(pos_, 2) == "&&") {
        return absl::InvalidArgumentError("set intersection (&&) is not supported");
      } else if (in_.substr(pos_, 2) == "[:") {
        const size_t end = in_.find(":]", pos_);
        if (end == absl::string_view::npos) return absl::InvalidArgumentError("unfinished [: in a set");
        absl::StrAppend(&out_, in_.substr(pos_, end + 2 - pos_));
        pos_ = end + 2;
      } else if (in_[pos_] == '[') {
        return absl::InvalidArgumentError("a set inside a set is not supported");
      } else {
        out_ += in_[pos_++];
      }
    }
    if (pos_ >= in_.size()) return absl::InvalidArgumentError("unfinished set");
    out_ += in_[pos_++];
    return absl::OkStatus();
  }

  // Copies the option letters of "(?imx-imx": Ruby's m is PCRE2's s.
  void Group() {
    out_ += "(?";
    pos_ += 2;
    size_t end = pos_;
    while (end < in_.size() && (in_[end] == 'i' || in_[end] == 'm' || in_[end] == 'x' || in_[end] == '-'))
      ++end;
    const bool options = end < in_.size() && (in_[end] == ':' || in_[end] == ')');
    if (!options) return;
    for (; pos_ < end; ++pos_) out_ += in_[pos_] == 'm' ? 's' : in_[pos_];
  }

  bool Peek(char c) const { return pos_ < in_.size() && in_[pos_] == c; }

  absl::string_view in_;
  size_t pos_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

struct Regex::Impl {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;

  ~Impl() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }

  // Returns PCRE2's result code. PCRE2's interpreter matches again where the JIT's small stack overflows.
  int Match(absl::string_view text, size_t start, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    if (jit) {
      const int rc = pcre2_jit_match(code, subject, text.size(), start, 0, data, context);
      if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    }
    return pcre2_match(code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
  }
};

Regex::Regex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Regex::~Regex() = default;

absl::StatusOr<std::unique_ptr<Regex>> Regex::Compile(const std::string& pattern, bool literal) {
  if (!IsUtf8(pattern)) return absl::InvalidArgumentError("pattern is not UTF-8");
  std::string translated = pattern;
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
  if (literal) {
    options = PCRE2_UTF | PCRE2_LITERAL;
  } else {
    ASSIGN_OR_RETURN(translated, TranslateOniguruma(pattern));
    options |= PCRE2_MULTILINE;  // Ruby's ^ and $ always match at line ends
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto impl = std::make_unique<Impl>();
  impl->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(), options,
                             &error, &offset, nullptr);
  if (impl->code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return absl::InvalidArgumentError(absl::StrCat("pattern of the pre-tokenizer, at ", offset, ": ",
                                                   reinterpret_cast<const char*>(message)));
  }
  impl->context = pcre2_match_context_create(nullptr);
  SOMNUS_CHECK(impl->context != nullptr);
  pcre2_set_match_limit(impl->context, kMatchLimit);
  pcre2_set_heap_limit(impl->context, kHeapLimitKib);
  impl->jit = pcre2_jit_compile(impl->code, PCRE2_JIT_COMPLETE) == 0;
  return std::unique_ptr<Regex>(new Regex(std::move(impl)));
}

void Regex::FindAll(absl::string_view text, std::vector<std::pair<size_t, size_t>>* matches) const {
  struct DataDeleter {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_match_data, DataDeleter> data(pcre2_match_data_create(1, nullptr));
  SOMNUS_CHECK(data != nullptr);
  size_t pos = 0;
  bool matched = false;
  size_t last_end = 0;
  while (pos <= text.size()) {
    if (impl_->Match(text, pos, data.get()) < 0) return;  // no match, or a limit
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const size_t begin = range[0], end = range[1];
    if (begin > end) return;  // the result of \K inside a look-ahead
    if (begin == end && matched && begin == last_end) {
      if (pos >= text.size()) return;
      pos += Utf8Length(static_cast<unsigned char>(text[pos]));
      continue;
    }
    matches->emplace_back(begin, end);
    matched = true;
    last_end = pos = end;
  }
}

}  // namespace somnus

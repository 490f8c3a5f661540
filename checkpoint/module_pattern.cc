#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "checkpoint/safetensors.h"

namespace somnus {
namespace {

constexpr size_t kMaxExpressionBytes = 4096;
constexpr uint32_t kMatchLimit = 20'000;  // steps of one match; a name has some 60 characters
constexpr uint32_t kHeapLimitKib = 1024;

bool IsName(absl::string_view key) {
  absl::ConsumePrefix(&key, "^");
  return !key.empty() && std::all_of(key.begin(), key.end(),
                                     [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '.'; });
}

// As an expression of letters, where a "." is any character.
bool NameMatches(absl::string_view key, absl::string_view module) {
  const bool is_whole = absl::ConsumePrefix(&key, "^");
  if (module.size() < key.size()) return false;
  const absl::string_view before = module.substr(0, module.size() - key.size());
  const absl::string_view tail = module.substr(before.size());
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] != '.' && key[i] != tail[i]) return false;
  }
  return before.empty() || (!is_whole && before.back() == '.');
}

// Without the prefixes of a wrapper.
std::string CanonicalKey(const std::string& key) {
  return absl::StartsWith(key, "^") ? absl::StrCat("^", CanonicalName(key.substr(1))) : CanonicalName(key);
}

}  // namespace

struct ModulePattern::Expression {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;

  ~Expression() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

absl::StatusOr<ModulePattern> ModulePattern::Compile(const std::string& key) {
  if (IsName(key)) return ModulePattern(CanonicalKey(key));
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("the regular expression '", key.substr(0, 100), "' ", why));
  };
  if (key.size() > kMaxExpressionBytes)
    return bad(absl::StrCat("is longer than ", kMaxExpressionBytes, " bytes"));
  const std::string whole = absl::StrCat("(.*\\.)?(", key, ")$");  // groups count as PEFT's do
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto expression = std::make_shared<Expression>();
  expression->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(),
                                   PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (expression->code == nullptr) {
    PCRE2_UCHAR message[256];
    pcre2_get_error_message(error, message, sizeof(message));
    return bad(absl::StrCat("cannot be read: ", reinterpret_cast<const char*>(message)));
  }
  expression->context = pcre2_match_context_create(nullptr);
  SOMNUS_CHECK(expression->context != nullptr);
  pcre2_set_match_limit(expression->context, kMatchLimit);
  pcre2_set_heap_limit(expression->context, kHeapLimitKib);
  ModulePattern pattern(key);
  pattern.expression_ = std::move(expression);
  return pattern;
}

absl::StatusOr<bool> ModulePattern::Matches(const LoraModuleName& module) const {
  if (expression_ == nullptr) return NameMatches(key_, module.canonical);
  struct DataDeleter {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  const std::unique_ptr<pcre2_match_data, DataDeleter> data(pcre2_match_data_create(1, nullptr));
  SOMNUS_CHECK(data != nullptr);
  const int rc = pcre2_match(expression_->code, reinterpret_cast<PCRE2_SPTR>(module.saved.data()),
                             module.saved.size(), 0, 0, data.get(), expression_->context);
  if (rc >= 0) return true;
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  return absl::InvalidArgumentError(
      absl::StrCat("the regular expression '", key_.substr(0, 100), "' takes too many steps"));
}

bool NamesModule(absl::string_view key, absl::string_view module) {
  if (absl::ConsumePrefix(&key, "^")) return module == key;
  return module == key || (absl::EndsWith(module, key) && module.size() > key.size() &&
                           module[module.size() - key.size() - 1] == '.');
}

}  // namespace somnus

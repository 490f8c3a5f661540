#include "coordinator/structured/xgrammar_compiler.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "coordinator/structured/whitespace_bound.h"
#include "coordinator/structured/work_meter.h"
#include "coordinator/structured/xgrammar_log.h"
#include "coordinator/structured/xgrammar_lookaheads.h"
#include "coordinator/structured/xgrammar_repetitions.h"
#include "coordinator/structured/xgrammar_warnings.h"
// The next header is xgrammar's. xgrammar_log.h has to come first, in the place of a header that xgrammar's
// includes.
#include "cpp/compiled_grammar_impl.h"

namespace somnus {
namespace {

constexpr int16_t kNoByte = -1;
// How many masks a matcher fills between two looks at the memory of its grammar, which grows by masks.
constexpr int64_t kMasksPerLook = 256;

// The state that all grammars and matchers of a compiler share.
struct Shared {
  GrammarLimits limits;
  int64_t rows;
  std::vector<int16_t> first_bytes;  // of each token that adds text, for whole words of a mask
  WhitespaceTokens whitespace;
  int32_t longest_token;  // in bytes

  WorkMeter::Limits compile_limits() const { return {limits.compile_bytes, limits.compile_time}; }
  // For a call of a matcher whose earlier calls hold `held` bytes.
  WorkMeter::Limits step_limits(int64_t held) const {
    return {limits.matcher_bytes - held, limits.step_time};
  }
};
using SharedPtr = std::shared_ptr<const Shared>;

// The words of an error for clients: xgrammar's checks put their C++ expression before the words.
std::string WithoutExpression(absl::string_view error) {
  constexpr absl::string_view kEnd = ") is false: ";
  if (const size_t end = error.find(kEnd); end != absl::string_view::npos)
    error.remove_prefix(end + kEnd.size());
  error = absl::StripAsciiWhitespace(error);
  return error.empty() ? "the grammar engine refuses the grammar" : std::string(error);
}

// Runs `work`, a function that returns a Status, within the limits. An exception of xgrammar becomes an error
// of `wrong`'s kind. Adds the bytes that the work has left allocated to `held`.
template <typename Work>
absl::Status Metered(const WorkMeter::Limits& limits, absl::StatusCode wrong, int64_t* held,
                     const Work& work) {
  WorkMeter meter(limits);
  absl::Status exceeded, status;
  try {
    status = work();
    exceeded = meter.End();
  } catch (const std::exception& error) {
    exceeded = meter.End();
    status = absl::Status(wrong, WithoutExpression(error.what()));
  } catch (...) {
    exceeded = meter.End();
    status = absl::Status(wrong, "an exception of an unknown type");
  }
  *held += meter.allocated();
  // First what the meter says, as xgrammar may have caught the meter's exception.
  return exceeded.ok() ? status : exceeded;
}

std::string EbnfOfChoices(const std::vector<std::string>& choices) {
  std::string grammar = "root ::= ";
  const char* separator = "";
  for (const std::string& choice : choices) {
    absl::StrAppend(&grammar, separator, "\"");
    for (const char c : choice) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x20 || byte == 0x7f || c == '"' || c == '\\') {
        absl::StrAppendFormat(&grammar, "\\u%04x", byte);
      } else {
        grammar += c;
      }
    }
    grammar += '"';
    separator = " | ";
  }
  return grammar;
}

// Sets the bound of white space in those JSON schemas of a structural tag that have none. Only formats are
// looked at: a schema may have members of any name.
void BoundWhitespace(nlohmann::ordered_json* value, int32_t most) {
  if (!value->is_structured()) return;
  const bool is_schema = value->is_object() && value->contains("json_schema");
  if (is_schema && !value->contains("max_whitespace_cnt")) (*value)["max_whitespace_cnt"] = most;
  for (auto& [key, member] : value->items()) {
    if (key != "json_schema" || !is_schema) BoundWhitespace(&member, most);
  }
}

std::string WithMaxWhitespace(const std::string& tag, int32_t most) {
  if (most == 0) return tag;
  auto parsed = nlohmann::ordered_json::parse(tag, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return tag;  // xgrammar says why
  BoundWhitespace(&parsed, most);
  return parsed.dump();
}

class XgrammarMatcher : public GrammarMatcher {
 public:
  XgrammarMatcher(const xgrammar::CompiledGrammar& grammar, xgrammar::GrammarMatcher matcher,
                  SharedPtr shared)
      : grammar_(grammar), matcher_(std::move(matcher)), shared_(std::move(shared)) {}

  absl::Status Accept(int32_t token) override {
    RETURN_IF_ERROR(broken_);
    if (token < 0 || token >= shared_->rows) return NotAllowed(token);
    mask_here_.clear();
    bool accepted = false;
    RETURN_IF_ERROR(Run([&] {
      accepted = matcher_.AcceptToken(token);
      return absl::OkStatus();
    }));
    if (!accepted) return NotAllowed(token);
    ++accepted_;
    return absl::OkStatus();
  }

  absl::Status Rollback(int64_t count) override {
    RETURN_IF_ERROR(broken_);
    if (count < 0 || count > accepted_) {
      return absl::InvalidArgumentError(absl::StrCat(count, " tokens cannot be taken back of ", accepted_));
    }
    accepted_ -= count;
    mask_here_.clear();
    return Run([&] {
      matcher_.Rollback(static_cast<int>(count));
      return absl::OkStatus();
    });
  }

  absl::Status FillMask(absl::Span<uint32_t> mask) override {
    RETURN_IF_ERROR(broken_);
    if (static_cast<int64_t>(mask.size()) != MaskWords(shared_->rows)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a mask of ", mask.size(), " words for ", shared_->rows, " tokens"));
    }
    if (matcher_.IsTerminated()) return absl::FailedPreconditionError("the text has ended");
    if (mask_here_.empty()) {
      RETURN_IF_ERROR(Run([&] { return Fill(mask); }));
    } else {
      std::copy(mask_here_.begin(), mask_here_.end(), mask.begin());
    }
    for (const uint32_t word : mask) {
      if (word != 0) return absl::OkStatus();
    }
    return absl::FailedPreconditionError("no token can go on with the text as its grammar asks");
  }

  absl::StatusOr<std::string> ForcedText(int64_t max_bytes, absl::Duration max_time) override {
    RETURN_IF_ERROR(broken_);
    const absl::Time deadline = absl::Now() + max_time;
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(shared_->rows)));
    std::string text;
    for (bool goes_on = true; goes_on && absl::Now() < deadline;) {
      if (static_cast<int64_t>(text.size()) >= max_bytes || matcher_.IsTerminated()) break;
      RETURN_IF_ERROR(Run([&] { return ForceByte(absl::MakeSpan(mask), &text, &goes_on); }));
    }
    RETURN_IF_ERROR(Run([&] {
      matcher_.Rollback(static_cast<int>(text.size()));
      return absl::OkStatus();
    }));
    return text;
  }

  bool IsComplete() const override { return broken_.ok() && matcher_.IsCompleted(); }
  bool IsTerminated() const override { return broken_.ok() && matcher_.IsTerminated(); }

  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Fork() const override {
    RETURN_IF_ERROR(broken_);
    std::unique_ptr<XgrammarMatcher> fork;
    int64_t held = 0;
    RETURN_IF_ERROR(Metered(shared_->step_limits(0), absl::StatusCode::kInternal, &held, [&] {
      fork = std::make_unique<XgrammarMatcher>(grammar_, matcher_.Fork(), shared_);
      return absl::OkStatus();
    }));
    fork->accepted_ = accepted_;
    fork->held_ = held;
    return fork;
  }

 private:
  static absl::Status NotAllowed(int32_t token) {
    return absl::InvalidArgumentError(absl::StrCat("token ", token, " is not allowed by the grammar"));
  }

  // After an exception the state of xgrammar's matcher is unknown.
  template <typename Work>
  absl::Status Run(const Work& work) {
    broken_ = Metered(shared_->step_limits(held_), absl::StatusCode::kInternal, &held_, work);
    return broken_;
  }

  absl::Status Fill(absl::Span<uint32_t> mask) {
    if (++masks_ % kMasksPerLook == 0 &&
        static_cast<int64_t>(grammar_.MemorySizeBytes()) > shared_->limits.compile_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the grammar's masks take more than ", shared_->limits.compile_bytes >> 20, " MiB"));
    }
    int64_t shape = static_cast<int64_t>(mask.size()), stride = 1;
    DLTensor tensor = {};
    tensor.data = mask.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = {kDLInt, 32, 1};
    tensor.shape = &shape;
    tensor.strides = &stride;
    matcher_.FillNextTokenBitmask(&tensor);
    // xgrammar may set bits after the last row.
    if (const int64_t rest = shared_->rows % 32; rest != 0) mask.back() &= (uint32_t{1} << rest) - 1;
    return absl::OkStatus();
  }

  // The byte with which all tokens of `mask` begin, or kNoByte.
  int16_t SharedByte(absl::Span<const uint32_t> mask) const {
    int16_t shared = kNoByte;
    for (size_t word = 0; word < mask.size(); ++word) {
      for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
        const int16_t byte = shared_->first_bytes[word * 32 + static_cast<size_t>(std::countr_zero(bits))];
        if (byte == kNoByte || (shared != kNoByte && byte != shared)) return kNoByte;
        shared = byte;
      }
    }
    return shared;
  }

  // Goes on with the byte with which all tokens begin that may come behind `text`; clears `goes_on` where the
  // tokens begin with several bytes.
  absl::Status ForceByte(absl::Span<uint32_t> mask, std::string* text, bool* goes_on) {
    RETURN_IF_ERROR(Fill(mask));
    if (text->empty()) mask_here_.assign(mask.begin(), mask.end());
    const int16_t byte = SharedByte(mask);
    *goes_on = byte != kNoByte;
    if (!*goes_on) return absl::OkStatus();
    if (!matcher_.AcceptString(std::string(1, static_cast<char>(byte)))) {
      return absl::InternalError("the grammar refuses a byte that it allowed");
    }
    text->push_back(static_cast<char>(byte));
    return absl::OkStatus();
  }

  const xgrammar::CompiledGrammar grammar_;
  xgrammar::GrammarMatcher matcher_;
  const SharedPtr shared_;
  std::vector<uint32_t> mask_here_;  // of the next token, where ForcedText has made the mask; or empty
  int64_t accepted_ = 0;             // tokens
  int64_t masks_ = 0;
  int64_t held_ = 0;  // bytes that the calls so far have left allocated
  absl::Status broken_;
};

class XgrammarGrammar : public CompiledGrammar {
 public:
  // `max_whitespace`: of JSON texts; nullopt: as the grammar says.
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, std::optional<int32_t> max_whitespace, SharedPtr shared)
      : grammar_(std::move(grammar)), max_whitespace_(max_whitespace), shared_(std::move(shared)) {}

  absl::StatusOr<std::unique_ptr<GrammarMatcher>> NewMatcher() const override {
    std::unique_ptr<GrammarMatcher> matcher;
    int64_t held = 0;
    RETURN_IF_ERROR(Metered(shared_->step_limits(0), absl::StatusCode::kInternal, &held, [&] {
      matcher = std::make_unique<XgrammarMatcher>(grammar_, xgrammar::GrammarMatcher(grammar_), shared_);
      return absl::OkStatus();
    }));
    if (!max_whitespace_.has_value()) return matcher;
    return std::make_unique<BoundedWhitespaceMatcher>(
        std::move(matcher), std::shared_ptr<const WhitespaceTokens>(shared_, &shared_->whitespace),
        *max_whitespace_);
  }

  bool MakeMasks() const override {
    int64_t held = 0;
    const absl::Status status =
        Metered(shared_->compile_limits(), absl::StatusCode::kInternal, &held, [this] {
          xgrammar::CompiledGrammar grammar = grammar_;  // another handle of the same grammar
          grammar->MaterializeAdaptiveTokenMaskCache();
          return absl::OkStatus();
        });
    // A matcher needs room for the masks that are made on demand: see XgrammarMatcher::Fill.
    return absl::IsDeadlineExceeded(status) && bytes() < shared_->limits.compile_bytes / 2;
  }

  int64_t bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }

 private:
  const xgrammar::CompiledGrammar grammar_;
  const std::optional<int32_t> max_whitespace_;
  const SharedPtr shared_;
};

class XgrammarCompiler : public GrammarCompiler {
 public:
  XgrammarCompiler(const xgrammar::TokenizerInfo& info, const GrammarVocabulary& vocabulary,
                   const XgrammarOptions& options)
      // One thread, as exceptions and meters belong to the caller's. Masks are made after the compile: a
      // grammar's first text waits for few of them.
      : tokenizer_(info),
        compiler_(info, /*max_threads=*/1, /*cache_enabled=*/true, options.shared_bytes,
                  /*enable_dynamic_compilation=*/true),
        shared_(std::make_shared<const Shared>(Shared{options.limits, vocabulary.rows,
                                                      FirstBytesOf(vocabulary), WhitespaceTokens(vocabulary),
                                                      LongestTokenOf(vocabulary)})) {}

  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const GrammarSource& source) override {
    RETURN_IF_ERROR(CheckGrammarSource(source, shared_->limits));
    XgrammarWarnings warnings;
    std::shared_ptr<const CompiledGrammar> result;
    int64_t held = 0;
    RETURN_IF_ERROR(Metered(shared_->compile_limits(), absl::StatusCode::kInvalidArgument, &held, [&] {
      xgrammar::CompiledGrammar compiled = compiler_.CompileGrammar(
          UnrollRepetitions(Parse(source), shared_->limits.max_chain_branches, shared_->longest_token));
      DropWrongLookaheads(&compiled);
      TrustFarSteps(&compiled);
      result = std::make_shared<XgrammarGrammar>(std::move(compiled), MaxWhitespace(source), shared_);
      return absl::OkStatus();
    }));
    if (!warnings.messages().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a part of it cannot be enforced: ", absl::StrJoin(warnings.messages(), "; ")));
    }
    return result;
  }

 private:
  static std::vector<int16_t> FirstBytesOf(const GrammarVocabulary& vocabulary) {
    std::vector<int16_t> first_bytes(static_cast<size_t>(MaskWords(vocabulary.rows) * 32), kNoByte);
    for (size_t id = 0; id < vocabulary.token_bytes.size(); ++id) {
      const std::string& bytes = vocabulary.token_bytes[id];
      if (!bytes.empty()) first_bytes[id] = static_cast<unsigned char>(bytes[0]);
    }
    for (const int32_t token : vocabulary.end_tokens) first_bytes[static_cast<size_t>(token)] = kNoByte;
    return first_bytes;
  }

  static int32_t LongestTokenOf(const GrammarVocabulary& vocabulary) {
    size_t longest = 0;
    for (const std::string& bytes : vocabulary.token_bytes) longest = std::max(longest, bytes.size());
    return static_cast<int32_t>(longest);
  }

  xgrammar::Grammar Parse(const GrammarSource& source) const {
    switch (source.kind) {
      case GrammarKind::kJsonSchema:
        return ParseSchema(source.text, source.layout);
      case GrammarKind::kJsonObject:
        return ParseSchema(R"({"type": "object"})", source.layout);
      case GrammarKind::kRegex:
        return xgrammar::Grammar::FromRegex(source.text);
      case GrammarKind::kChoice:
        return xgrammar::Grammar::FromEBNF(EbnfOfChoices(source.choices));
      case GrammarKind::kEbnf:
        return xgrammar::Grammar::FromEBNF(source.text);
      case GrammarKind::kStructuralTag:
        return ParseStructuralTag(source.text);
    }
    throw std::invalid_argument("a grammar of an unknown kind");
  }

  // With any number of characters of white space; matchers bound the number.
  static xgrammar::Grammar ParseSchema(const std::string& schema, const JsonLayout& layout) {
    return xgrammar::Grammar::FromJSONSchema(schema, layout.any_whitespace, /*indent=*/std::nullopt,
                                             /*separators=*/std::nullopt, /*strict_mode=*/false);
  }

  std::optional<int32_t> MaxWhitespace(const GrammarSource& source) const {
    const bool is_json = source.kind == GrammarKind::kJsonSchema || source.kind == GrammarKind::kJsonObject;
    if (!is_json || !source.layout.any_whitespace) return std::nullopt;
    if (source.layout.max_whitespace.has_value()) return source.layout.max_whitespace;
    const int32_t limit = shared_->limits.max_whitespace;
    return limit > 0 ? std::optional(limit) : std::nullopt;
  }

  xgrammar::Grammar ParseStructuralTag(const std::string& text) const {
    const auto result = xgrammar::Grammar::FromStructuralTag(
        WithMaxWhitespace(text, shared_->limits.max_whitespace), tokenizer_);
    if (const auto* error = std::get_if<xgrammar::StructuralTagError>(&result))
      throw std::invalid_argument(xgrammar::GetMessageFromVariantError(*error));
    return std::get<xgrammar::Grammar>(result);
  }

  const xgrammar::TokenizerInfo tokenizer_;
  xgrammar::GrammarCompiler compiler_;
  const SharedPtr shared_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrammarCompiler>> NewXgrammarCompiler(const GrammarVocabulary& vocabulary,
                                                                     const XgrammarOptions& options) {
  RETURN_IF_ERROR(vocabulary.Check());
  // xgrammar 0.2.9 allows an end token as text, too, where the token's bytes make the text complete. A server
  // does not send these bytes, so the text would end incomplete.
  std::vector<std::string> token_bytes = vocabulary.token_bytes;
  for (const int32_t token : vocabulary.end_tokens) token_bytes[static_cast<size_t>(token)].clear();
  try {
    const xgrammar::TokenizerInfo info(token_bytes, xgrammar::VocabType::RAW,
                                       static_cast<int>(vocabulary.rows), vocabulary.end_tokens);
    return std::make_unique<XgrammarCompiler>(info, vocabulary, options);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary does not fit the grammar engine: ", error.what()));
  }
}

}  // namespace somnus

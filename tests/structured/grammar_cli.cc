// Gates and compiles schemas for scripts, as a server does, over the small vocabulary. Reads a JSON object a
// line, and answers with one:
//   {"schema": S}        {"schema": gated}, {"refusal": {pointer, keyword, message}} or {"error": message}
//   {"regex": PATTERN}   the same with "pattern"
// and then, of the last schema or pattern that was compiled:
//   {"texts": [...]}     {"accepted": [...]}: whether each is a whole text of the grammar
//   {"samples": N, "seed": N, "most_bytes": N}
//                        {"texts": [...]}: random texts, drawn from masks; null where a text got too long, or
//                        has the bytes of a surrogate, which grammars let pass; {"error": message, "after":
//                        text}
//   {"masks_of": TEXT}   {"faults": [...]}: where the masks along the text differ from a walk byte by byte
//   {"masks_along": [ID, ...]}
//                        {"masks": [HEX, ...]}: the mask before each token, up to the first token that the
//                        grammar refuses; in hexadecimal digits, token 0 in the lowest bit of the first byte
// With another vocabulary from here on, for which "samples" and "masks_of" have no meaning:
//   {"vocabulary": {"tokens": [HEX, ...], "end": ID}}
//                        {}

#include <bit>
#include <iostream>
#include <random>
#include <string>
#include <variant>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/structured/schema_gate.h"
#include "tests/structured/small_vocabulary.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

class GrammarSession {
 public:
  Json Answer(const Json& request) {
    if (const auto schema = request.find("schema"); schema != request.end())
      return Take(GateSchemaText(schema->dump(), GateOptions()));
    if (const auto regex = request.find("regex"); regex != request.end())
      return Take(GateRegex(regex->get<std::string>(), GateOptions()));
    if (const auto vocabulary = request.find("vocabulary"); vocabulary != request.end())
      return Change(*vocabulary);
    if (grammar_ == nullptr) return {{"error", "no grammar"}};
    if (const auto texts = request.find("texts"); texts != request.end()) {
      Json accepted = Json::array();
      for (const Json& text : *texts) accepted.push_back(Matches(*grammar_, text.get<std::string>()));
      return {{"accepted", accepted}};
    }
    if (const auto text = request.find("masks_of"); text != request.end())
      return {{"faults", FaultsOf(text->get<std::string>())}};
    if (const auto tokens = request.find("masks_along"); tokens != request.end())
      return {{"masks", MasksAlong(*tokens)}};
    std::mt19937 random(request.value("seed", 0u));
    Json texts = Json::array();
    for (int i = request.value("samples", 1); i > 0; --i)
      texts.push_back(Sample(random, request.value("most_bytes", 400u)));
    return {{"texts", texts}};
  }

 private:
  static GrammarSource Source(const Json& schema) {
    return SourceOf(GrammarKind::kJsonSchema, schema.dump());
  }
  static GrammarSource Source(const std::string& pattern) { return SourceOf(GrammarKind::kRegex, pattern); }
  static const char* KeyOf(const Json&) { return "schema"; }
  static const char* KeyOf(const std::string&) { return "pattern"; }

  template <typename Gated>
  Json Take(const std::variant<Gated, SchemaRefusal>& answer) {
    grammar_.reset();
    if (const auto* refusal = std::get_if<SchemaRefusal>(&answer)) {
      return {
          {"refusal",
           {{"pointer", refusal->pointer}, {"keyword", refusal->keyword}, {"message", refusal->message}}}};
    }
    const Gated& gated = std::get<Gated>(answer);
    const auto grammar = compiler_->Compile(Source(gated));
    if (!grammar.ok()) return {{"error", std::string(grammar.status().message())}};
    grammar_ = *grammar;
    return {{KeyOf(gated), gated}};
  }

  Json Change(const Json& vocabulary) {
    vocabulary_ = GrammarVocabulary();
    for (const Json& token : vocabulary["tokens"])
      vocabulary_.token_bytes.push_back(absl::HexStringToBytes(token.get<std::string>()));
    vocabulary_.end_tokens = {vocabulary["end"].get<int32_t>()};
    vocabulary_.rows = static_cast<int64_t>(vocabulary_.token_bytes.size());
    auto compiler = NewXgrammarCompiler(vocabulary_, {});
    SOMNUS_CHECK(compiler.ok());
    grammar_.reset();
    compiler_ = *std::move(compiler);
    return Json::object();
  }

  Json MasksAlong(const Json& tokens) const {
    const auto matcher = NewMatcher();
    Json masks = Json::array();
    for (const Json& token : tokens) {
      std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_.rows)));
      if (!matcher->FillMask(absl::MakeSpan(mask)).ok()) break;
      const absl::string_view bytes(reinterpret_cast<const char*>(mask.data()),
                                    mask.size() * sizeof(mask[0]));
      masks.push_back(absl::BytesToHexString(bytes));
      if (!matcher->Accept(token.get<int32_t>()).ok()) break;
    }
    return masks;
  }

  absl::StatusOr<std::vector<int32_t>> Allowed(GrammarMatcher* matcher) const {
    std::vector<uint32_t> mask(static_cast<size_t>(MaskWords(vocabulary_.rows)));
    RETURN_IF_ERROR(matcher->FillMask(absl::MakeSpan(mask)));
    std::vector<int32_t> tokens;
    for (size_t word = 0; word < mask.size(); ++word) {
      for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1)
        tokens.push_back(static_cast<int32_t>(word) * 32 + std::countr_zero(bits));
    }
    return tokens;
  }

  const std::string& BytesOf(int32_t token) const {
    return vocabulary_.token_bytes[static_cast<size_t>(token)];
  }
  // The tokens of which all bytes are in `bytes`.
  std::vector<int32_t> TokensOf(const std::vector<int32_t>& tokens, absl::string_view bytes) const {
    std::vector<int32_t> found;
    for (const int32_t token : tokens) {
      if (absl::string_view(BytesOf(token)).find_first_not_of(bytes) == absl::string_view::npos)
        found.push_back(token);
    }
    return found;
  }

  static Json WholeText(const std::string& text) { return IsUtf8(text) ? Json(text) : Json(); }

  // Mostly tokens of usual texts, and towards `most_bytes` tokens that end something.
  Json Sample(std::mt19937& random, size_t most_bytes) const {
    const auto matcher = NewMatcher();
    std::string text;
    while (text.size() < most_bytes) {
      absl::StatusOr<std::vector<int32_t>> allowed = Allowed(matcher.get());
      if (!allowed.ok()) return {{"error", std::string(allowed.status().message())}, {"after", text}};
      std::vector<int32_t> tokens = *std::move(allowed);
      if (matcher->IsComplete() && random() % 2 == 0) return WholeText(text);
      std::erase_if(tokens, [](int32_t token) { return token == kSmallEnd || token == kSmallOtherEnd; });
      if (tokens.empty()) return WholeText(text);
      const absl::string_view ends = text.size() > most_bytes / 4 ? "\"}]" : "";
      const absl::string_view usual = random() % 8 > 0 ? "\"{}[],:abc01-.xntfrue\\ " : "";
      for (const absl::string_view bytes : {ends, usual}) {
        std::vector<int32_t> some = TokensOf(tokens, bytes);
        if (some.empty()) continue;
        tokens = std::move(some);
        break;
      }
      const int32_t token = tokens[random() % tokens.size()];
      SOMNUS_CHECK(matcher->Accept(token).ok());
      text += BytesOf(token);
    }
    return Json();
  }

  Json FaultsOf(absl::string_view text) const {
    const auto matcher = NewMatcher();
    Json faults = Json::array();
    for (size_t at = 0; at <= text.size(); ++at) {
      const absl::StatusOr<std::vector<int32_t>> allowed = Allowed(matcher.get());
      if (!allowed.ok()) faults.push_back(absl::StrCat(allowed.status().message(), " at ", at));
      if (!allowed.ok()) break;
      std::vector<bool> in_mask(static_cast<size_t>(vocabulary_.rows));
      for (const int32_t token : *allowed) in_mask[static_cast<size_t>(token)] = true;
      for (int32_t token = 0; token < static_cast<int32_t>(vocabulary_.token_bytes.size()); ++token) {
        const bool is_in_mask = in_mask[static_cast<size_t>(token)];
        if (is_in_mask == MayCome(matcher.get(), token)) continue;
        faults.push_back(absl::StrCat(is_in_mask ? "the mask alone has '" : "the mask lacks '",
                                      absl::CHexEscape(BytesOf(token)), "' at ", at));
      }
      if (at < text.size() && !matcher->Accept(static_cast<unsigned char>(text[at])).ok()) break;
    }
    return faults;
  }

  std::unique_ptr<GrammarMatcher> NewMatcher() const {
    auto matcher = grammar_->NewMatcher();
    SOMNUS_CHECK(matcher.ok());
    return *std::move(matcher);
  }

  // Whether the bytes of `token` may come one after the other. Leaves the matcher unchanged.
  bool MayCome(GrammarMatcher* matcher, int32_t token) const {
    if (token == kSmallEnd || token == kSmallOtherEnd) return matcher->IsComplete();
    const std::string& bytes = BytesOf(token);
    size_t accepted = 0;
    while (accepted < bytes.size() && matcher->Accept(static_cast<unsigned char>(bytes[accepted])).ok())
      ++accepted;
    SOMNUS_CHECK(matcher->Rollback(static_cast<int64_t>(accepted)).ok());
    return !bytes.empty() && accepted == bytes.size();
  }

  GrammarVocabulary vocabulary_ = SmallVocabulary();
  std::unique_ptr<GrammarCompiler> compiler_ = SmallCompiler();
  std::shared_ptr<const CompiledGrammar> grammar_;
};

}  // namespace
}  // namespace somnus

int main() {
  somnus::GrammarSession session;
  for (std::string line; std::getline(std::cin, line);) {
    const auto request = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    SOMNUS_CHECK(request.is_object());
    std::cout << session.Answer(request).dump() << "\n" << std::flush;
  }
}

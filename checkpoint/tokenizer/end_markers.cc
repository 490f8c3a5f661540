#include "checkpoint/tokenizer/end_markers.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace somnus {
namespace {

// No text has these spellings by chance, so tokens of any type with these spellings are markers.
constexpr absl::string_view kCertain[] = {
    "<|im_end|>",                               // ChatML: Qwen, SmolLM, Yi, Hermes
    "<|eot_id|>",                               // Llama 3
    "<|eom_id|>",                               // Llama 3, before a tool's answer
    "<|eot|>",                                  // Llama 4
    "<|eom|>",                                  // likewise
    "<|end_of_text|>",                          // Llama 3, Granite
    "<end_of_turn>",                            // Gemma
    "<turn|>",                                  // Gemma 4
    "<|end|>",                                  // Phi
    "<|end_of_turn|>",                          // OpenChat, Starling
    "<|EOT|>",                                  // DeepSeek Coder
    "<|endoftext|>",                            // GPT-2 and after
    "<|return|>",                               // Harmony (GPT-OSS)
    "<|call|>",                                 // likewise, before a tool's answer
    "<|calls|>",                                // Solar
    "<|flush|>",                                // likewise
    "<|END_OF_TURN_TOKEN|>",                    // Command R
    "<|endofturn|>",                            // HyperCLOVA, EXAONE
    "[|endofturn|]",                            // EXAONE
    "<end_of_utterance>",                       // SmolVLM
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",  // DeepSeek
};
// These may be text: a tag of HTML, an abbreviation in brackets.
constexpr absl::string_view kAmbiguous[] = {"</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~["};

template <size_t kSize>
bool IsIn(absl::string_view text, const absl::string_view (&list)[kSize]) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

bool LooksLikeMarker(absl::string_view text) {
  return text.size() > 4 && absl::StartsWith(text, "<|") && absl::EndsWith(text, "|>");
}

// In Harmony's and Solar's formats an answer consists of messages, and <|end|> ends only a message.
bool EndsOnlyMessages(const TokenizerData& data) {
  const auto has = [&data](absl::string_view text) { return absl::c_linear_search(data.tokens, text); };
  const bool calls = has("<|call|>") || has("<|calls|>");
  return calls && (has("<|return|>") || has("<|flush|>"));
}

void MakeControl(int32_t id, AddedToken* added, TokenizerData* data) {
  if (added != nullptr) {
    added->special = true;
    return;
  }
  AddedToken token{};
  token.id = id;
  token.content = data->tokens[id];
  token.special = true;
  data->added_tokens.push_back(std::move(token));
}

}  // namespace

void AddEndToken(int32_t id, TokenizerData* data) {
  if (id >= 0 && !absl::c_linear_search(data->end_token_ids, id)) data->end_token_ids.push_back(id);
}

std::vector<int32_t> EndMarkersOf(const TokenizerData& data) {
  std::vector<int32_t> ids;
  for (const AddedToken& token : data.added_tokens) {
    const bool certain =
        IsIn(token.content, kCertain) && !(token.content == "<|end|>" && EndsOnlyMessages(data));
    const bool written = absl::StrContains(data.chat_template, token.content);
    if (certain || (IsIn(token.content, kAmbiguous) && (token.special || written))) ids.push_back(token.id);
  }
  return ids;
}

void FindEndMarkers(TokenizerData* data) {
  absl::flat_hash_map<int32_t, size_t> added;
  for (size_t i = 0; i < data->added_tokens.size(); ++i) added.emplace(data->added_tokens[i].id, i);
  std::vector<std::string> retyped;
  for (int32_t id = 0; id < static_cast<int32_t>(data->tokens.size()); ++id) {
    const std::string& text = data->tokens[id];
    const bool certain = IsIn(text, kCertain) && !(text == "<|end|>" && EndsOnlyMessages(*data));
    const bool ends = certain || IsIn(text, kAmbiguous);
    if (!ends && !LooksLikeMarker(text)) continue;
    const auto found = added.find(id);
    AddedToken* const token = found == added.end() ? nullptr : &data->added_tokens[found->second];
    const bool control = token != nullptr && token->special;
    const bool written = absl::StrContains(data->chat_template, text);
    if (ends && (certain || control || written)) AddEndToken(id, data);
    // A marker that ends nothing and has the type "user defined" is a single token that is shown on purpose.
    const bool retype = ends ? certain || written : written && token == nullptr;
    if (control || !retype) continue;
    MakeControl(id, token, data);
    retyped.push_back(text);
  }
  if (retyped.empty()) return;
  constexpr size_t kMaxNamed = 8;
  const size_t named = std::min(retyped.size(), kMaxNamed);
  data->warnings.push_back(absl::StrCat(
      "the file types ", retyped.size(),
      " marker(s) of turns as ordinary text, which are taken as control tokens: ",
      absl::StrJoin(retyped.begin(), retyped.begin() + static_cast<std::ptrdiff_t>(named), ", ")));
}

}  // namespace somnus

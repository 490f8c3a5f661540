#include "coordinator/token_routes/tokenizer_info.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

OrderedJson AddedTokens(const TokenizerData& data) {
  OrderedJson tokens = OrderedJson::object();
  for (const AddedToken& token : data.added_tokens) {
    tokens[absl::StrCat(token.id)] = {{"content", token.content},         {"lstrip", token.lstrip},
                                      {"normalized", token.normalized},   {"rstrip", token.rstrip},
                                      {"single_word", token.single_word}, {"special", token.special}};
  }
  return tokens;
}

OrderedJson Templates(const TokenizerData& data) {
  if (data.tool_template.empty()) return TextOrNull(data.chat_template);
  return {{{"name", "default"}, {"template", data.chat_template}},
          {{"name", "tool_use"}, {"template", data.tool_template}}};
}

}  // namespace

OrderedJson TokenizerInfo(const ServedModel& model) {
  const TokenizerData& data = model.tokenizer->data();
  return {{"tokenizer_class", "PreTrainedTokenizerFast"},
          {"model_max_length", model.engine->max_model_len()},
          {"vocab_size", model.tokenizer->vocab_size()},
          {"add_bos_token", data.add_bos_token},
          {"bos_token", TextOrNull(data.bos_token)},
          {"eos_token", TextOrNull(data.eos_token)},
          {"unk_token", TextOrNull(data.unk_token_text)},
          {"pad_token", TextOrNull(data.pad_token)},
          {"additional_special_tokens", data.additional_special_tokens},
          {"added_tokens_decoder", AddedTokens(data)},
          {"chat_template", Templates(data)}};
}

}  // namespace somnus

#include "tests/tokenizer/load_tokenizer.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/status/status.h"

namespace somnus {
namespace {

using nlohmann::json;

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return file ? json::parse(file, nullptr, false) : json();
}

// The pattern of a step: {"String": text} or {"Regex": text}.
std::string PatternOf(const json& node) { return node["pattern"].begin().value(); }

void ReadNormalizer(const json& node, TokenizerData* data) {
  if (!node.is_object()) return;
  using Kind = NormalizerStep::Kind;
  static const auto* const kinds = new std::map<std::string, Kind>{
      {"NFC", Kind::kNfc},         {"NFD", Kind::kNfd},         {"NFKC", Kind::kNfkc},
      {"NFKD", Kind::kNfkd},       {"Strip", Kind::kStrip},     {"Lowercase", Kind::kLowercase},
      {"Prepend", Kind::kPrepend}, {"Replace", Kind::kReplace},
  };
  const std::string type = node.value("type", "");
  if (type == "Sequence") {
    for (const json& child : node["normalizers"]) ReadNormalizer(child, data);
    return;
  }
  NormalizerStep step{};
  step.kind = kinds->at(type);
  step.content = node.value(type == "Prepend" ? "prepend" : "content", "");
  if (step.kind == Kind::kReplace) step.pattern = PatternOf(node);
  if (step.kind == Kind::kReplace) step.pattern_is_regex = node["pattern"].contains("Regex");
  step.left = node.value("strip_left", false);
  step.right = node.value("strip_right", false);
  data->normalizer.push_back(step);
}

void ReadDecoder(const json& node, TokenizerData* data) {
  if (!node.is_object()) return;
  using Kind = DecoderStep::Kind;
  static const auto* const kinds = new std::map<std::string, Kind>{
      {"ByteLevel", Kind::kByteLevel}, {"Replace", Kind::kReplace}, {"ByteFallback", Kind::kByteFallback},
      {"Fuse", Kind::kFuse},           {"Strip", Kind::kStrip},     {"Metaspace", Kind::kMetaspace},
  };
  const std::string type = node.value("type", "");
  if (type == "Sequence") {
    for (const json& child : node["decoders"]) ReadDecoder(child, data);
    return;
  }
  DecoderStep step{};
  step.kind = kinds->at(type);
  if (step.kind == Kind::kReplace) step.pattern = PatternOf(node);
  if (step.kind == Kind::kMetaspace) step.pattern = node["replacement"];
  step.content = node.value("content", "");
  step.count = step.kind == Kind::kMetaspace ? node.value("prepend_scheme", "always") != "never"
                                             : node.value("start", 0);
  data->decoder.push_back(step);
}

void ReadPreTokenizer(const json& node, TokenizerData* data) {
  if (!node.is_object()) return;
  using Kind = PreTokenizerStep::Kind;
  const std::string type = node.value("type", "");
  PreTokenizerStep step{.behavior = node.value("behavior", "Isolated")};
  if (type == "Sequence") {
    for (const json& child : node["pretokenizers"]) ReadPreTokenizer(child, data);
    return;
  }
  if (type == "Split") {
    step.kind = Kind::kSplit;
    step.pattern_is_regex = node["pattern"].contains("Regex");
    step.pattern = PatternOf(node);
    step.invert = node.value("invert", false);
  } else if (type == "Digits") {
    step.kind = Kind::kDigits;
    step.individual_digits = node.value("individual_digits", false);
  } else if (type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
    step.add_prefix_space = node.value("add_prefix_space", false);
    step.use_regex = node.value("use_regex", true);
  } else if (type == "Metaspace") {
    using Prepend = PreTokenizerStep::Prepend;
    step.kind = Kind::kMetaspace;
    step.pattern = node["replacement"];
    step.split = node.value("split", true);
    const std::string scheme = node.value("prepend_scheme", "always");
    step.prepend = scheme == "always"  ? Prepend::kAlways
                   : scheme == "first" ? Prepend::kFirst
                                       : Prepend::kNever;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::kWhitespaceSplit;
  } else {
    step.kind = Kind::kPunctuation;
  }
  data->pre_tokenizer.push_back(step);
}

void ReadPostProcessor(const json& node, TokenizerData* data) {
  if (!node.is_object()) return;
  if (node.value("type", "") == "Sequence") {
    for (const json& child : node["processors"]) ReadPostProcessor(child, data);
  }
  if (node.value("type", "") != "TemplateProcessing") return;
  bool before = true;
  for (const json& part : node["single"]) {
    if (part.contains("Sequence")) before = false;
    if (!part.contains("SpecialToken")) continue;
    for (const json& id : node["special_tokens"][std::string(part["SpecialToken"]["id"])]["ids"]) {
      (before ? data->post_processor.prefix_ids : data->post_processor.suffix_ids).push_back(id);
    }
  }
}

void ReadAddedTokens(const json& nodes, TokenizerData* data) {
  for (const json& node : nodes) {
    AddedToken token;
    token.id = node["id"];
    token.content = node["content"];
    token.special = node.value("special", false);
    token.lstrip = node.value("lstrip", false);
    token.rstrip = node.value("rstrip", false);
    token.single_word = node.value("single_word", false);
    token.normalized = node.value("normalized", false);
    data->added_tokens.push_back(token);
  }
}

void ReadModel(const json& model, TokenizerData* data) {
  for (const auto& [token, id] : model["vocab"].items()) {
    if (id >= data->tokens.size()) data->tokens.resize(id.get<size_t>() + 1);
    data->tokens[id] = token;
  }
  for (const json& merge : model["merges"]) {
    if (merge.is_array()) {
      data->merges.emplace_back(merge[0], merge[1]);
    } else {
      const std::string text = merge;
      const size_t space = text.find(' ', 1);
      data->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    }
  }
  data->ignore_merges = model.value("ignore_merges", false);
  data->byte_fallback = model.value("byte_fallback", false);
  data->fuse_unk = model.value("fuse_unk", false);
  if (model.contains("unk_token") && model["unk_token"].is_string()) data->unk_token = model["unk_token"];
}

}  // namespace

absl::StatusOr<TokenizerData> LoadTokenizerData(const std::string& directory) {
  const json root = ReadJson(directory + "/tokenizer.json");
  if (!root.is_object()) return absl::NotFoundError(directory + "/tokenizer.json is missing or no JSON");
  TokenizerData data;
  ReadModel(root.at("model"), &data);
  ReadAddedTokens(root.at("added_tokens"), &data);
  ReadNormalizer(root.at("normalizer"), &data);
  ReadPreTokenizer(root.at("pre_tokenizer"), &data);
  ReadDecoder(root.at("decoder"), &data);
  ReadPostProcessor(root.at("post_processor"), &data);
  data.chat_template = LoadChatTemplate(directory);
  return data;
}

std::string LoadChatTemplate(const std::string& directory) {
  if (std::ifstream file(directory + "/chat_template.jinja"); file) {
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  const json config = ReadJson(directory + "/tokenizer_config.json");
  if (!config.is_object() || !config.contains("chat_template")) return "";
  return config["chat_template"].is_string() ? config["chat_template"].get<std::string>() : "";
}

}  // namespace somnus

// The flags of embeddings, for the table of the coordinator's flags.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/flags/flag_specs.h"

namespace somnus {
namespace {

constexpr size_t kMaxListed = 1024;

absl::Status SetPoolingType(const std::string& value, PoolingFlags* flags) {
  constexpr std::pair<absl::string_view, std::optional<Pooling>> kTypes[] = {
      {"auto", std::nullopt}, {"last", Pooling::kLast}, {"mean", Pooling::kMean}, {"cls", Pooling::kCls}};
  for (const auto& [word, type] : kTypes) {
    if (value != word) continue;
    flags->type = type;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("is not one of auto, last, mean, cls");
}

absl::Status SetMatryoshka(const std::string& value, PoolingFlags* flags) {
  if (value == "auto") {
    flags->matryoshka.reset();
    return absl::OkStatus();
  }
  MatryoshkaDimensions dimensions;
  dimensions.any = value == "any";
  if (value != "any" && value != "none") {
    for (const absl::string_view part : absl::StrSplit(value, ',')) {
      int32_t number;
      if (!absl::SimpleAtoi(part, &number) || number < 1)
        return absl::InvalidArgumentError("is not auto, none, any or numbers above 0, separated by commas");
      dimensions.listed.push_back(number);
    }
    if (dimensions.listed.size() > kMaxListed)
      return absl::InvalidArgumentError(absl::StrCat("has more than ", kMaxListed, " numbers"));
  }
  flags->matryoshka = std::move(dimensions);
  return absl::OkStatus();
}

}  // namespace

FlagGroup EmbeddingFlags(PoolingFlags* p) {
  return {"Embeddings",
          {
              Flag::OneOf(
                  "runner", &p->generates, {{"generate", true}, {"pooling", false}},
                  "generate: the model gives text and embeddings; pooling: requests for text are refused"),
              Flag::Custom(
                  "pooling-type", "auto|last|mean|cls", "auto",
                  [p](const std::string& value) { return SetPoolingType(value, p); },
                  "which of the tokens' final hidden states an embedding is: the last one, the mean of all, "
                  "or the first one; auto: as 1_Pooling/config.json says, else the last one"),
              Flag::Custom(
                  "matryoshka-dimensions", "auto|none|any|N,N,...", "auto",
                  [p](const std::string& value) { return SetMatryoshka(value, p); },
                  "how many numbers of an embedding a request may ask for (dimensions); auto: as config.json "
                  "says, "
                  "else none"),
          }};
}

}  // namespace somnus

// The response to a request for embeddings.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/response_json.h"

namespace somnus {
namespace {

static_assert(std::endian::native == std::endian::little, "ToBase64 writes the bytes as they are in memory");

constexpr double kLeastNorm = 1e-12;  // as torch.nn.functional.normalize

class EmbeddingsWriter : public ResponseWriter {
 public:
  EmbeddingsWriter(const GenerateParams& params, const ServedModel& model)
      : params_(params),
        model_(model),
        created_(absl::ToUnixSeconds(absl::Now())),
        embeddings_(params.prompts.size()) {}

  std::string OnUpdate(ChoiceUpdate update, const UsageCounts&) override {
    if (update.delta.pooled.empty()) return "";
    std::string& json = embeddings_[update.index];
    const std::vector<float> numbers = FinishEmbedding(*params_.embedding, std::move(update.delta.pooled));
    if (params_.embedding->base64) {
      json = absl::StrCat("\"", ToBase64(numbers), "\"");
    } else {
      AppendNumbers(numbers, &json);
    }
    held_bytes_ += static_cast<int64_t>(json.size());
    return "";
  }

  std::string Finish(const UsageCounts& usage) override {
    const bool pools = params_.embedding->api == EmbeddingOptions::Api::kPooling;
    std::string out = "{";
    AppendHead(params_, model_.name, "list", created_, &out);
    out += ",\"data\":[";
    for (size_t i = 0; i < embeddings_.size(); ++i) {
      absl::StrAppend(&out, i > 0 ? "," : "", "{\"index\":", i, ",\"object\":\"",
                      pools ? "pooling" : "embedding", "\",\"", pools ? "data" : "embedding",
                      "\":", embeddings_[i], "}");
      std::string().swap(embeddings_[i]);  // a large response must not be in memory twice
    }
    out += "],\"usage\":";
    AppendUsage(usage, &out);
    return out + "}";
  }

  std::optional<ApiError> ErrorOfAbort() const override {
    return ApiError{503, "The request was aborted.", ""};
  }

 private:
  const GenerateParams& params_;
  const ServedModel& model_;
  const int64_t created_;
  std::vector<std::string> embeddings_;  // JSON, by the input's index
};

}  // namespace

std::vector<float> FinishEmbedding(const EmbeddingOptions& options, std::vector<float> pooled) {
  if (options.dimensions > 0 && static_cast<size_t>(options.dimensions) < pooled.size())
    pooled.resize(options.dimensions);
  if (!options.normalize) return pooled;
  double squares = 0;
  for (const float x : pooled) squares += double{x} * x;
  const double norm = std::max(std::sqrt(squares), kLeastNorm);
  for (float& x : pooled) x = static_cast<float>(x / norm);
  return pooled;
}

void AppendNumbers(const std::vector<float>& numbers, std::string* out) {
  *out += '[';
  char text[32];
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) *out += ',';
    const std::to_chars_result result = std::to_chars(text, text + sizeof(text), numbers[i]);
    SOMNUS_CHECK(result.ec == std::errc());
    const absl::string_view number(text, static_cast<size_t>(result.ptr - text));
    // Clients tell numbers from integers by the point.
    absl::StrAppend(out, number, number.find_first_of(".e") == absl::string_view::npos ? ".0" : "");
  }
  *out += ']';
}

std::string ToBase64(const std::vector<float>& numbers) {
  return absl::Base64Escape(
      absl::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)));
}

std::unique_ptr<ResponseWriter> MakeEmbeddingsWriter(const GenerateParams& params, const ServedModel& model) {
  return std::make_unique<EmbeddingsWriter>(params, model);
}

}  // namespace somnus

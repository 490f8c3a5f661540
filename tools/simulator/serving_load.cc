#include "tools/simulator/serving_load.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace somnus {
namespace {

// The most tokens of the paper's model: prompt and output of one request.
constexpr int32_t kModelLength = 2048;

double NormalBelow(double x) { return 0.5 * std::erfc(-x / std::numbers::sqrt2); }

// The mean of exp(mu + sigma * z) for a standard normal z, where exp(mu + sigma * z) is at most `most`.
double CutMean(double mu, double sigma, double most) {
  const double end = (std::log(most) - mu) / sigma;
  return std::exp(mu + sigma * sigma / 2) * NormalBelow(end - sigma) / NormalBelow(end);
}

class DrawnLoad : public RequestSource {
 public:
  explicit DrawnLoad(const DrawnLoadOptions& options)
      : options_(options),
        random_(options.seed),
        input_(options.trace == LoadTrace::kShareGpt ? LengthDistribution(161.31, 1.0, 1024)
                                                     : LengthDistribution(19.31, 0.5, 1024)),
        output_(options.trace == LoadTrace::kShareGpt ? LengthDistribution(337.99, 0.85, kModelLength - 1)
                                                      : LengthDistribution(58.45, 0.85, 1024)) {}

  std::optional<LoadRequest> Next() override {
    if (next_.id == options_.requests) return std::nullopt;
    next_.arrival_s += random_.Exponential(1 / options_.rate);
    do {
      next_.input = input_.Draw(&random_);
      next_.output = output_.Draw(&random_);
    } while (next_.input + next_.output > kModelLength);
    if (options_.prefix_groups > 0) {
      next_.prefix_group = static_cast<int64_t>(random_.Uniform() * options_.prefix_groups);
      next_.prefix = options_.prefix;
      next_.input += options_.prefix;
    }
    LoadRequest request = next_;
    ++next_.id;
    return request;
  }

 private:
  const DrawnLoadOptions options_;
  LoadRandom random_;
  const LengthDistribution input_;
  const LengthDistribution output_;
  LoadRequest next_;
};

}  // namespace

double LoadRandom::Uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * std::exp2(-53); }

double LoadRandom::Normal() {
  const double radius = std::sqrt(-2 * std::log(Uniform()));
  return radius * std::cos(2 * std::numbers::pi * Uniform());
}

double LoadRandom::Exponential(double mean) { return -mean * std::log(Uniform()); }

LengthDistribution::LengthDistribution(double mean, double sigma, int32_t most) : sigma_(sigma), most_(most) {
  double low = -1, high = std::log(static_cast<double>(most));
  for (int i = 0; i < 100; ++i) {
    mu_ = (low + high) / 2;
    (CutMean(mu_, sigma, most) < mean ? low : high) = mu_;
  }
}

int32_t LengthDistribution::Draw(LoadRandom* random) const {
  while (true) {
    const double length = std::exp(mu_ + sigma_ * random->Normal());
    if (length <= most_) return std::max(1, static_cast<int32_t>(std::lround(length)));
  }
}

std::unique_ptr<RequestSource> DrawLoad(const DrawnLoadOptions& options) {
  return std::make_unique<DrawnLoad>(options);
}

absl::StatusOr<std::unique_ptr<LoadFile>> LoadFile::Open(const std::string& path) {
  std::unique_ptr<LoadFile> load(new LoadFile(path));
  if (!load->file_) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return load;
}

std::optional<LoadRequest> LoadFile::Next() {
  std::string line;
  do {
    if (!status_.ok() || !std::getline(file_, line)) return std::nullopt;
    ++line_;
  } while (line.empty());
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = [&](const char* name, double missing) {
    const auto field = json.is_object() ? json.find(name) : json.end();
    return field != json.end() && field->is_number() ? field->get<double>() : missing;
  };
  LoadRequest request;
  request.id = count_;
  request.arrival_s = number("arrival", -1);
  const double input = number("input", 0), output = number("output", 0), prefix = number("prefix", 0);
  const double group = number("prefix_group", -1);
  const double most = 1 << 24;
  if (request.arrival_s < last_.arrival_s || input < 1 || input > most || output < 1 || output > most ||
      prefix < 0 || prefix > input || group < -1 || group > most) {
    status_ = absl::InvalidArgumentError(absl::StrCat(path_, ":", line_, ": is no request of a load"));
    return std::nullopt;
  }
  request.input = static_cast<int32_t>(input);
  request.output = static_cast<int32_t>(output);
  request.prefix_group = static_cast<int64_t>(group);
  request.prefix = request.prefix_group < 0 ? 0 : static_cast<int32_t>(prefix);
  last_ = request;
  ++count_;
  return request;
}

}  // namespace somnus

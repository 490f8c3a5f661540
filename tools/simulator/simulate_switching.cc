// simulate_switching: how many models a device can serve, and how well, by the policy that decides which
// model is awake.
//
//   simulate_switching [--seconds=N] [--seed=N]
//
// Two questions, in virtual time. First: a hundred models that are each called seldom, so many to a device
// with memory for one; switched when open requests have ended, or at any token. Second: six models, some
// called often, and memory for two; compared with a policy that knows nothing but the last use.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "base/flags.h"
#include "tools/simulator/model_switching.h"

namespace somnus {
namespace {

struct SimulatorFlags {
  int32_t seconds = 3600;
  int64_t seed = 1;
  int32_t models = 100;
  double rate = 0.037;
  double service_s = 16.8;
  absl::Duration step = absl::Milliseconds(25);
  absl::Duration wake_up = absl::Milliseconds(500);
  absl::Duration sleep = absl::Milliseconds(50);
  absl::Duration ttft = absl::Seconds(10);
  absl::Duration tpot = absl::Milliseconds(100);
};

FlagTable Table(SimulatorFlags* f) {
  FlagTable table;
  table.program = "simulate_switching";
  table.usage = "simulate_switching [flags]";
  table.about = "Simulates models that share a device, under several policies.";
  const absl::Duration least = absl::ZeroDuration(), most = absl::Minutes(10);
  table.groups = {{"Flags",
                   {Flag::Int("seconds", &f->seconds, 1, 1000000, "virtual time in which requests come"),
                    Flag::Int("seed", &f->seed, 0, INT64_MAX, "of arrivals"),
                    Flag::Int("models", &f->models, 1, 10000, "of the first question"),
                    Flag::Number("rate", &f->rate, 1e-6, 1000, "requests per second to each of them"),
                    Flag::Number("service-s", &f->service_s, 1e-3, 1e4, "seconds that a request takes alone"),
                    Flag::Time("step", &f->step, absl::Milliseconds(1), most, "of one token"),
                    Flag::Time("wake-up", &f->wake_up, least, most, "of a model"),
                    Flag::Time("sleep", &f->sleep, least, most, "of a model"),
                    Flag::Time("ttft", &f->ttft, least, most, "the first token is in time"),
                    Flag::Time("tpot", &f->tpot, least, most, "each further token is in time")}}};
  return table;
}

// Poisson arrivals of all models, of which model i gets `weights[i]` requests per second.
std::vector<SimulatedRequest> MakeRequests(const std::vector<double>& weights, int num_tokens, double seconds,
                                           std::mt19937_64* random) {
  std::vector<SimulatedRequest> requests;
  for (size_t i = 0; i < weights.size(); ++i) {
    std::exponential_distribution<double> gap(weights[i]);
    for (double at = gap(*random); at < seconds; at += gap(*random))
      requests.push_back({static_cast<int>(i), absl::Seconds(at), num_tokens});
  }
  std::sort(requests.begin(), requests.end(),
            [](const SimulatedRequest& a, const SimulatedRequest& b) { return a.arrival < b.arrival; });
  return requests;
}

SwitchingPolicy Planned(const ResidencyOptions& options) {
  return [options](MonotonicTime now, const std::vector<ModelView>& models) {
    return PlanResidency(options, now, models);
  };
}

struct Sums {
  int64_t tokens = 0, tokens_in_time = 0, wake_ups = 0, preemptions = 0;
  double switching_s = 0, device_s = 0;
  std::vector<double> ttft;

  void Add(const SwitchingOutcome& outcome, const std::vector<SimulatedRequest>& requests) {
    for (size_t i = 0; i < requests.size(); ++i) {
      tokens += requests[i].num_tokens;
      tokens_in_time += outcome.requests[i].num_tokens_in_time;
      ttft.push_back(absl::ToDoubleSeconds(outcome.requests[i].ttft));
    }
    wake_ups += outcome.num_wake_ups;
    preemptions += outcome.num_preemptions;
    switching_s += absl::ToDoubleSeconds(outcome.switching);
    device_s += absl::ToDoubleSeconds(outcome.end);
  }
  double attained() const { return tokens > 0 ? 100.0 * tokens_in_time / tokens : 100; }
  double Quantile(double q) {
    if (ttft.empty()) return 0;
    std::sort(ttft.begin(), ttft.end());
    return ttft[std::min(ttft.size() - 1, static_cast<size_t>(q * ttft.size()))];
  }
};

// `per_device` models on each of as many devices as that needs.
Sums ServeOnDevices(const SimulatorFlags& flags, int per_device, const ResidencyOptions& options) {
  SimulatedModel model;
  model.wake_up = model.wake_up_discarded = flags.wake_up;
  model.sleep = flags.sleep;
  model.step = flags.step;
  model.ttft_target = flags.ttft;
  model.tpot_target = flags.tpot;
  const int num_tokens = std::max(1, static_cast<int>(flags.service_s / absl::ToDoubleSeconds(flags.step)));
  std::mt19937_64 random(flags.seed);
  Sums sums;
  for (int first = 0; first < flags.models; first += per_device) {
    const int count = std::min(per_device, flags.models - first);
    const std::vector<SimulatedModel> models(count, model);
    const auto requests =
        MakeRequests(std::vector<double>(count, flags.rate), num_tokens, flags.seconds, &random);
    sums.Add(SimulateSwitching(models, requests, Planned(options)), requests);
  }
  return sums;
}

void ManyModels(const SimulatorFlags& flags) {
  ResidencyOptions by_request;
  by_request.device_memory_budget = 1;
  by_request.turn = absl::ZeroDuration();
  by_request.max_wait = absl::InfiniteDuration();
  ResidencyOptions by_token = by_request;
  by_token.policy = ResidencyPolicy::kSlo;
  by_token.turn = absl::Seconds(4);
  const double active = flags.models * (1 - std::exp(-flags.rate * flags.service_s));
  std::printf("%d models, %.3f requests/s each, %.1f s of service: %.1f are active on average\n",
              flags.models, flags.rate, flags.service_s, active);
  std::printf("tokens in time (first within %s, then one each %s), %%; switching, %% of the time\n",
              absl::FormatDuration(flags.ttft).c_str(), absl::FormatDuration(flags.tpot).c_str());
  std::printf("models/device devices | by request: in time, switching, ttft p50 p99 | by token: the same\n");
  int most[2] = {0, 0};
  for (int per_device = 1; per_device <= 10; ++per_device) {
    std::printf("%7d %11d", per_device, (flags.models + per_device - 1) / per_device);
    const ResidencyOptions* both[] = {&by_request, &by_token};
    for (int i = 0; i < 2; ++i) {
      Sums sums = ServeOnDevices(flags, per_device, *both[i]);
      if (sums.attained() >= 90) most[i] = per_device;
      std::printf(" | %6.2f %6.2f %8.2f %8.2f", sums.attained(), 100 * sums.switching_s / sums.device_s,
                  sums.Quantile(0.5), sums.Quantile(0.99));
    }
    std::printf("\n");
  }
  std::printf("most models per device with 90 %% of the tokens in time: by request %d, by token %d\n\n",
              most[0], most[1]);
}

void SixModels(const SimulatorFlags& flags) {
  SimulatedModel model;
  model.wake_up = model.wake_up_discarded = absl::Milliseconds(150);
  model.sleep = absl::Milliseconds(20);
  model.step = absl::Milliseconds(10);
  model.tpot_target = absl::Milliseconds(50);
  const std::vector<SimulatedModel> models(6, model);
  ResidencyOptions fifo;
  fifo.device_memory_budget = 2;
  ResidencyOptions slo = fifo;
  slo.policy = ResidencyPolicy::kSlo;
  const SwitchingPolicy naive = [](MonotonicTime, const std::vector<ModelView>& views) {
    return PlanNaiveLru(2, views);
  };
  std::printf("6 models with Zipf's weights, memory for 2, 50 tokens of 10 ms, a switch takes 170 ms; s\n");
  std::printf("requests/s policy     wake-ups preempted  switching %%  ttft p50    p99  longest\n");
  for (const double rate : {0.5, 1.0, 2.0, 4.0}) {
    std::vector<double> weights;
    for (int i = 1; i <= 6; ++i) weights.push_back(rate / i / 2.45);
    std::mt19937_64 random(flags.seed);
    const auto requests = MakeRequests(weights, 50, std::min(flags.seconds, 600), &random);
    const std::pair<const char*, SwitchingPolicy> policies[] = {
        {"fifo", Planned(fifo)}, {"slo", Planned(slo)}, {"naive LRU", naive}};
    for (const auto& [name, policy] : policies) {
      Sums sums;
      sums.Add(SimulateSwitching(models, requests, policy), requests);
      std::printf("%10.1f %-10s %8ld %9ld %12.1f %9.2f %6.2f %8.2f\n", rate, name,
                  static_cast<long>(sums.wake_ups), static_cast<long>(sums.preemptions),
                  100 * sums.switching_s / sums.device_s, sums.Quantile(0.5), sums.Quantile(0.99),
                  sums.Quantile(1));
    }
  }
}

}  // namespace
}  // namespace somnus

int main(int argc, char** argv) {
  somnus::SimulatorFlags flags;
  if (const auto code = somnus::ParseCommandLine(somnus::Table(&flags), argc, argv); code.has_value())
    return *code;
  somnus::ManyModels(flags);
  somnus::SixModels(flags);
  return 0;
}

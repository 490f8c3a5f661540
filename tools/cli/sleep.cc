// The commands sleep and wake-up.
#include <stdio.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/bytes_text.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/control_options.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"
#include "tools/cli/transition_bar.h"
#include "tools/cli/transition_json.h"

namespace somnus::cli {
namespace {

template <typename Map>
void PrintBytes(absl::string_view verb, const Map& bytes_by_tag, double seconds) {
  int64_t total = 0;
  std::vector<std::string> parts;
  for (const auto& [tag, bytes] : std::map<std::string, int64_t>(bytes_by_tag.begin(), bytes_by_tag.end())) {
    total += bytes;
    parts.push_back(absl::StrCat(Printable(tag), " ", BytesText(bytes)));
  }
  const std::string line =
      absl::StrFormat("%s %s (%s) in %.3f s", verb, BytesText(total), absl::StrJoin(parts, ", "), seconds);
  puts(Wrap(line, OutputColumns(), 2).c_str());
}

using TagBytes = std::map<std::string, int64_t>;

// The bytes of each tag's backups where the ranks compute in host memory; nullopt where a device, such as a
// GPU, has memory of its own, or the server does not answer.
std::optional<TagBytes> BackupsInSameMemory(const Server& server, const ControlOptions& options) {
  const absl::StatusOr<v1::GetStatusResponse> status =
      GetStatus(server, Named<v1::GetStatusRequest>(options), options.timeout);
  if (!status.ok()) return std::nullopt;
  TagBytes bytes;
  for (const v1::RankStatus& rank : status->ranks()) {
    if (!absl::StartsWith(rank.device(), "cpu")) return std::nullopt;
    for (const auto& [tag, held] : rank.host_bytes_by_tag()) bytes[tag] += held;
  }
  return bytes;
}

// Bytes that moved into backups in the same memory were not freed, and are printed apart.
void PrintFreedOfHost(const v1::SleepResponse& response, const TagBytes& before, const TagBytes& after) {
  TagBytes freed;
  int64_t moved = 0;
  for (const auto& [tag, bytes] : response.freed_bytes_by_tag()) {
    const auto held = [&tag](const TagBytes& backups) {
      const auto found = backups.find(tag);
      return found == backups.end() ? 0 : found->second;
    };
    const int64_t into_backups = std::clamp<int64_t>(held(after) - held(before), 0, bytes);
    moved += into_backups;
    freed[tag] = bytes - into_backups;
  }
  PrintBytes("freed", freed, response.seconds());
  if (moved > 0)
    absl::PrintF("%s more are in backups, which this host's memory holds, too\n", BytesText(moved));
}

int64_t Sum(const TagBytes& bytes_by_tag) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : bytes_by_tag) sum += bytes;
  return sum;
}

// For a sleep that found no device memory to free: a deeper sleep gives backups up.
void PrintDeeper(int level, int64_t dropped) {
  absl::PrintF("asleep at level %d; %s\n", level,
               dropped > 0 ? absl::StrCat("freed ", BytesText(dropped), " of backups")
                           : "no device memory was left to free");
}

absl::StatusOr<int> PrintJson(const google::protobuf::Message& response) {
  ASSIGN_OR_RETURN(const std::string json, TransitionJson(response));
  puts(json.c_str());
  return kOk;
}

absl::StatusOr<int> PutToSleep(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::SleepRequest>(options);
  request.set_level(options.level);
  request.set_mode(options.mode);
  request.set_force(options.force);
  for (const absl::string_view tag : absl::StrSplit(options.tags, ',', absl::SkipEmpty()))
    request.add_tags(std::string(tag));
  const std::optional<TagBytes> backups = BackupsInSameMemory(server, options);
  auto bar = std::make_unique<TransitionBar>(server, options.model);
  const absl::StatusOr<v1::SleepResponse> slept = Sleep(server, request, options.timeout);
  bar = nullptr;
  RETURN_IF_ERROR(slept.status());
  const v1::SleepResponse& response = *slept;
  if (options.json) return PrintJson(response);
  if (options.level == kPauseLevel) {
    puts(response.already_asleep() ? "already paused" : "paused");
  } else if (response.already_asleep()) {
    absl::PrintF("already asleep at level %d\n", response.level());
  } else {
    const std::optional<TagBytes> after = backups ? BackupsInSameMemory(server, options) : std::nullopt;
    if (response.freed_bytes_by_tag().empty()) {
      PrintDeeper(response.level(), after ? Sum(*backups) - Sum(*after) : 0);
    } else if (after.has_value()) {
      PrintFreedOfHost(response, *backups, *after);
    } else {
      PrintBytes("freed", response.freed_bytes_by_tag(), response.seconds());
    }
  }
  return kOk;
}

bool SleepsInPart(const v1::GetStatusResponse& status) {
  for (const v1::RankStatus& rank : status.ranks()) {
    for (const auto& [tag, bytes] : rank.bytes_by_tag()) {
      if (bytes == 0) return true;
    }
  }
  return false;
}

// Why the engine is still asleep after a wake-up, and the commands that wake it.
void PrintLeft(const Server& server, const ControlOptions& options) {
  const std::string flags =
      absl::StrCat(server.url_flag, options.model.empty() ? "" : absl::StrCat(" --model=", options.model));
  const auto status = GetStatus(server, Named<v1::GetStatusRequest>(options), options.timeout);
  const bool lacks_weights = status.ok() && status->weights_version() == 0;
  const bool sleeps_in_part = !lacks_weights || SleepsInPart(*status);
  if (sleeps_in_part) absl::PrintF("the engine is still asleep; somnus wake-up%s maps the rest\n", flags);
  if (lacks_weights) absl::PrintF("the weights are stale; somnus reload-weights%s brings others\n", flags);
}

absl::StatusOr<int> Wake(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::WakeUpRequest>(options);
  for (const absl::string_view tag : absl::StrSplit(options.tags, ',', absl::SkipEmpty()))
    request.add_tags(std::string(tag));
  if (!options.load_weights) request.set_load_weights(false);
  auto bar = std::make_unique<TransitionBar>(server, options.model);
  const absl::StatusOr<v1::WakeUpResponse> woken = WakeUp(server, request, options.timeout);
  bar = nullptr;
  RETURN_IF_ERROR(woken.status());
  const v1::WakeUpResponse& response = *woken;
  if (options.json) return PrintJson(response);
  if (response.already_resident()) {
    puts(response.awake() ? "already awake" : "already resident; the engine is still asleep");
  } else {
    PrintBytes("mapped", response.mapped_bytes_by_tag(), response.seconds());
    if (!response.awake()) PrintLeft(server, options);
  }
  return kOk;
}

Flag JsonFlag(ControlOptions* o, const char* message) {
  return Flag::Switch("json", &o->json,
                      absl::StrCat("what every rank has done, as JSON (proto/control.proto, ", message, ")"));
}

}  // namespace

int RunSleep(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "sleep",
      "Frees device memory on every rank, or on none. Level 1 keeps the weights in host memory, level 2\n"
      "drops them too (wake-up then reads them from disk); level 0 frees nothing, and is a pause.",
      {Flag::Int("level", &o.level, kPauseLevel, kMaxSleepLevel, "how deep"),
       Flag::Text("tags", &o.tags, "free only these: weights, kv_cache, workspace").Shows("TAG,..."),
       ModeFlag(&o),
       Flag::Switch(
           "force", &o.force,
           "at level 2 also weights that a trainer's update has brought, and that no file has, are dropped"),
       JsonFlag(&o, "SleepResponse")});
  return RunControl(table, args, [&o] { return PutToSleep(o); });
}

int RunWakeUp(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "wake-up", "Maps everything back, at the same addresses, and serves again. That ends a pause, too.",
      {Flag::Text("tags", &o.tags,
                  "wake only these: weights, kv_cache, workspace; scheduling ends a pause alone")
           .Shows("TAG,..."),
       Flag::Switch("load-weights", &o.load_weights,
                    "discarded weights are read; else their memory alone is mapped, for reload-weights or an "
                    "update that follows"),
       JsonFlag(&o, "WakeUpResponse")});
  return RunControl(table, args, [&o] { return Wake(o); });
}

}  // namespace somnus::cli

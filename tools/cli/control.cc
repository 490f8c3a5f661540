// The commands status, sleep, wake-up, pause, resume, reload-weights and roll.
#include <google/protobuf/util/json_util.h>
#include <stdio.h>
#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/request_bounds.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/model_list.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"

namespace somnus::cli {
namespace {

struct ControlOptions {
  ServerOptions server;
  absl::Duration timeout = absl::Minutes(2);
  std::string model;
  int32_t level = 1;
  std::string tags;
  v1::SleepMode mode = v1::SLEEP_MODE_KEEP;
  std::string path;
  int64_t weights_version = 0;
  bool clear_cache = true;
  absl::Duration grace = absl::Seconds(10);
  bool json = false;
  bool ready = false;
};

// The flags of one command: its own, and those that these commands share.
FlagTable ControlTable(ControlOptions* o, std::string name, std::string about, std::vector<Flag> own) {
  FlagGroup server = ServerFlags(&o->server);
  server.flags.push_back(
      Flag::Time("timeout", &o->timeout, absl::Seconds(1), absl::Hours(24), "give up after this time"));
  own.push_back(Flag::Text("model", &o->model, "which model, where several are served").Shows("NAME"));
  return {.program = "somnus " + name,
          .usage = "somnus " + name + " [flags]",
          .about = std::move(about),
          .groups = {{"Flags", std::move(own)}, std::move(server)}};
}

// A request about the model that was named.
template <typename Request>
Request Named(const ControlOptions& options) {
  Request request;
  request.set_model(options.model);
  return request;
}

Flag ModeFlag(ControlOptions* o) {
  return Flag::OneOf(
      "mode", &o->mode,
      {{"keep", v1::SLEEP_MODE_KEEP}, {"wait", v1::SLEEP_MODE_WAIT}, {"abort", v1::SLEEP_MODE_ABORT}},
      "open requests go on afterwards, with the same tokens; end first (new ones wait); or "
      "are aborted");
}

void PrintReplica(const v1::ReplicaStatus& replica) {
  absl::PrintF("replica %d %s, epoch %d, recoveries %d, %d running, %d waiting%s\n", replica.replica(),
               StateText(replica.state()), replica.group_epoch(), replica.num_recoveries(),
               replica.num_requests_running(), replica.num_requests_waiting(),
               replica.error().empty() ? "" : ": " + replica.error());
}

// Ranks are counted within their replica.
void PrintRanks(const v1::GetStatusResponse& status) {
  if (status.ranks().empty()) return;
  absl::PrintF("%s\n", Styled(STDOUT_FILENO, Style::kBold,
                              absl::StrFormat("%-5s %-8s %-20s %-8s %12s %12s %12s  %s", "rank", "pid",
                                              "host", "device", "weights", "kv_cache", "workspace", "NUMA")));
  for (const v1::RankStatus& rank : status.ranks()) {
    const auto bytes = [&rank](const char* tag) {
      const auto found = rank.bytes_by_tag().find(tag);
      return BytesText(found == rank.bytes_by_tag().end() ? 0 : found->second);
    };
    const std::string name = status.replicas().empty() ? absl::StrCat(rank.rank())
                                                       : absl::StrCat(rank.replica(), ".", rank.rank());
    absl::PrintF("%-5s %-8d %-20s %-8s %12s %12s %12s  %s%s\n", name, rank.pid(), rank.host(), rank.device(),
                 bytes("weights"), bytes("kv_cache"), bytes("workspace"), rank.numa(),
                 rank.error().empty() ? "" : "  " + Styled(STDOUT_FILENO, Style::kRed, rank.error()));
  }
}

void PrintServer(const Server& server, const v1::GetStatusResponse& status, absl::string_view between = "") {
  const std::string uptime =
      status.uptime_s() < 1 ? "0s"
                            : absl::FormatDuration(absl::Seconds(static_cast<int64_t>(status.uptime_s())));
  absl::PrintF("address   %s, gRPC %s\n%sversion   %s, up %s\n", server.http.Url(), server.grpc.ToString(),
               between, status.version(), uptime);
}

void PrintStatus(const Server& server, const v1::GetStatusResponse& status) {
  const bool loading = status.state() == v1::ENGINE_STATE_LOADING;  // the rest is not known yet
  if (!loading) absl::PrintF("model     %s\n", status.model());
  const std::string level =
      status.sleep_level() > 0 ? absl::StrCat(" (level ", status.sleep_level(), ")") : "";
  const bool says_so = status.state() == v1::ENGINE_STATE_PAUSED;
  absl::PrintF("state     %s%s%s\n", StateText(status.state()), level,
               status.paused() && !says_so ? ", paused" : "");
  if (!status.error().empty()) absl::PrintF("error     %s\n", status.error());
  if (status.num_recoveries() > 0) {
    absl::PrintF("epoch     %d, recoveries %d\n", status.group_epoch(), status.num_recoveries());
  }
  if (loading) return PrintServer(server, status);
  absl::PrintF("requests  %d running, %d waiting\n", status.num_requests_running(),
               status.num_requests_waiting());
  absl::PrintF("blocks    %d free of %d, %s\n", status.free_blocks(), status.total_blocks(),
               status.kv_cache_dtype());
  if (!status.ranks().empty() && !status.ranks(0).weight_types().empty()) {
    absl::PrintF("weights   %s%s\n", status.ranks(0).weight_types(),
                 status.ranks_size() > 1 ? " on rank 0" : "");
  }
  if (status.weights_version() > 0) {
    absl::PrintF("source    %s, version %d\n", status.weights_source(), status.weights_version());
  } else {
    absl::PrintF("source    none: the weights are stale\n");
  }
  PrintServer(server, status, absl::StrFormat("context   %d tokens\n", status.max_model_len()));
  puts("");
  for (const v1::ReplicaStatus& replica : status.replicas()) PrintReplica(replica);
  PrintRanks(status);
}

absl::Status PrintJson(const v1::GetStatusResponse& status) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(status, &json, options).ok()) {
    return absl::InternalError("the status cannot be printed as JSON");
  }
  nlohmann::ordered_json fields = nlohmann::ordered_json::parse(json);
  // Scripts know it under this name, and as a number; protobuf writes 64-bit numbers as strings.
  fields.erase("group_epoch");
  fields["epoch"] = status.group_epoch();
  for (int i = 0; i < status.replicas_size(); ++i) {
    nlohmann::ordered_json& replica = fields["replicas"][static_cast<size_t>(i)];
    replica.erase("group_epoch");
    replica["epoch"] = status.replicas(i).group_epoch();
    replica["num_requests"] = status.replicas(i).num_requests();
    replica["num_recoveries"] = status.replicas(i).num_recoveries();
  }
  puts(fields.dump(1).c_str());
  return absl::OkStatus();
}

// The status of a server with several models, none of which was named.
int ShowModels(const Server& server, const v1::GetStatusResponse& status,
               const v1::ListModelStatusResponse& models, bool json) {
  if (json) {
    puts(ModelsJson(models).c_str());
  } else {
    PrintServer(server, status);
    absl::PrintF("\n%s", ModelTable(models));
  }
  return AnyFailed(models) ? kServerError : kOk;
}

absl::StatusOr<int> ShowStatus(const ControlOptions& options) {
  if (options.ready) {
    ASSIGN_OR_RETURN(const bool ready, IsReady(options.server));
    puts(ready ? "ready" : "not ready");
    return ready ? kOk : kServerError;
  }
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::GetStatusResponse status,
                   GetStatus(server, Named<v1::GetStatusRequest>(options), options.timeout));
  if (options.model.empty()) {
    const absl::StatusOr<v1::ListModelStatusResponse> models = ListModelStatus(server, options.timeout);
    if (models.ok() && models->models_size() > 1) return ShowModels(server, status, *models, options.json);
  }
  if (options.json) {
    RETURN_IF_ERROR(PrintJson(status));
  } else {
    PrintStatus(server, status);
  }
  return status.state() == v1::ENGINE_STATE_FAILED ? kServerError : kOk;
}

template <typename Map>
void PrintBytes(absl::string_view verb, const Map& bytes_by_tag, double seconds) {
  int64_t total = 0;
  std::vector<std::string> parts;
  for (const auto& [tag, bytes] : std::map<std::string, int64_t>(bytes_by_tag.begin(), bytes_by_tag.end())) {
    total += bytes;
    parts.push_back(absl::StrCat(tag, " ", BytesText(bytes)));
  }
  absl::PrintF("%s %s (%s) in %.3f s\n", verb, BytesText(total), absl::StrJoin(parts, ", "), seconds);
}

absl::StatusOr<int> PutToSleep(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::SleepRequest>(options);
  request.set_level(options.level);
  request.set_mode(options.mode);
  for (const absl::string_view tag : absl::StrSplit(options.tags, ',', absl::SkipEmpty()))
    request.add_tags(std::string(tag));
  ASSIGN_OR_RETURN(const v1::SleepResponse response, Sleep(server, request, options.timeout));
  if (options.level == kPauseLevel) {
    puts(response.already_asleep() ? "already paused" : "paused");
  } else if (response.already_asleep()) {
    absl::PrintF("already asleep at level %d\n", response.level());
  } else if (response.freed_bytes_by_tag().empty()) {
    absl::PrintF("asleep at level %d; no device memory was left to free\n", response.level());
  } else {
    PrintBytes("freed", response.freed_bytes_by_tag(), response.seconds());
  }
  return kOk;
}

absl::StatusOr<int> Wake(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::WakeUpRequest>(options);
  for (const absl::string_view tag : absl::StrSplit(options.tags, ',', absl::SkipEmpty()))
    request.add_tags(std::string(tag));
  ASSIGN_OR_RETURN(const v1::WakeUpResponse response, WakeUp(server, request, options.timeout));
  if (response.already_resident()) {
    puts(response.awake() ? "already awake" : "already resident; the engine is still asleep");
  } else {
    PrintBytes("mapped", response.mapped_bytes_by_tag(), response.seconds());
    if (!response.awake())
      absl::PrintF("the engine is still asleep; somnus wake-up%s%s maps the rest\n", server.url_flag,
                   options.model.empty() ? "" : " --model=" + options.model);
  }
  return kOk;
}

absl::StatusOr<int> PauseEngine(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::PauseRequest>(options);
  request.set_mode(options.mode);
  request.set_clear_cache(options.clear_cache);
  ASSIGN_OR_RETURN(const v1::PauseResponse response, Pause(server, request, options.timeout));
  absl::PrintF("paused after %.3f s\n", response.seconds());
  return kOk;
}

absl::StatusOr<int> ResumeEngine(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  ASSIGN_OR_RETURN(const v1::ResumeResponse response,
                   Resume(server, Named<v1::ResumeRequest>(options), options.timeout));
  absl::PrintF("resumed; the engine is %s\n", StateText(response.state()));
  return kOk;
}

absl::StatusOr<int> Reload(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::ReloadWeightsRequest>(options);
  request.set_path(options.path);
  request.set_mode(options.mode);
  if (options.weights_version > 0) request.set_weights_version(options.weights_version);
  ASSIGN_OR_RETURN(const v1::ReloadWeightsResponse response, ReloadWeights(server, request, options.timeout));
  absl::PrintF("version %d of the weights after %.3f s\n", response.weights_version(), response.seconds());
  return kOk;
}

absl::StatusOr<int> RollReplicas(const ControlOptions& options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  auto request = Named<v1::RollRequest>(options);
  request.set_grace_s(absl::ToDoubleSeconds(options.grace));
  ASSIGN_OR_RETURN(const v1::RollResponse response, Roll(server, request, options.timeout));
  absl::PrintF("restarted %d replicas in %.1f s\n", response.num_replicas(), response.seconds());
  return kOk;
}

}  // namespace

int RunStatus(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "status",
      "Shows the engine's state, its requests and KV blocks, and what memory each rank holds; of several\n"
      "models, and none named, a line for each. Exit code 1 when an engine has failed.\n\n"
      "  somnus status\n"
      "  until somnus status --ready; do sleep 1; done",
      {Flag::Switch(
           "json", &o.json,
           "the same as JSON (proto/control.proto, GetStatusResponse, with group_epoch as epoch; of several "
           "models ModelStatus)"),
       Flag::Switch("ready", &o.ready,
                    "only whether requests are served: exit code 0 when they are, else 1 or 3")});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(ShowStatus(o));
}

int RunSleep(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "sleep",
      "Frees device memory on every rank, or on none. Level 1 keeps the weights in host memory, level 2\n"
      "drops them too (wake-up then reads them from disk); level 0 frees nothing, and is a pause.",
      {Flag::Int("level", &o.level, kPauseLevel, kMaxSleepLevel, "how deep"),
       Flag::Text("tags", &o.tags, "free only these: weights, kv_cache, workspace").Shows("TAG,..."),
       ModeFlag(&o)});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(PutToSleep(o));
}

int RunWakeUp(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "wake-up", "Maps everything back, at the same addresses, and serves again. That ends a pause, too.",
      {Flag::Text("tags", &o.tags,
                  "wake only these: weights, kv_cache, workspace; scheduling ends a pause alone")
           .Shows("TAG,...")});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(Wake(o));
}

int RunPause(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table = ControlTable(
      &o, "pause", "Computes nothing until somnus resume. All memory stays; requests are accepted, and wait.",
      {ModeFlag(&o), Flag::Switch("clear-cache", &o.clear_cache,
                                  "empty the prefix cache; what open requests have computed is computed "
                                  "again")});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(PauseEngine(o));
}

int RunResume(const std::vector<std::string>& args) {
  ControlOptions o;
  const FlagTable table =
      ControlTable(&o, "resume", "Ends a pause. An engine that sleeps besides goes on when it is awake.", {});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(ResumeEngine(o));
}

int RunReloadWeights(const std::vector<std::string>& args) {
  ControlOptions o;
  o.timeout = absl::Hours(1);
  o.mode = v1::SLEEP_MODE_WAIT;
  FlagTable table =
      ControlTable(&o, "reload-weights",
                   "Reads the weights anew on every rank, from the checkpoint that was read last or from "
                   "PATH, another one\n"
                   "of the same architecture on the hosts of the workers.",
                   {ModeFlag(&o), Flag::Int("weights-version", &o.weights_version, 0, int64_t{1} << 62,
                                            "the number that the new weights have; 0: the last one and 1")});
  table.usage = "somnus reload-weights [PATH] [flags]";
  table.max_positional = 1;
  std::vector<std::string> positional;
  if (const auto code = ParseCommand(table, args, &positional)) return *code;
  if (!positional.empty()) o.path = positional[0];
  return ExitCode(Reload(o));
}

int RunRoll(const std::vector<std::string>& args) {
  ControlOptions o;
  o.timeout = absl::Hours(1);
  const FlagTable table = ControlTable(
      &o, "roll",
      "Restarts the workers of one replica after the other, while the others serve. No request is lost: "
      "those\n"
      "that are still open at a replica when --grace is over go on at another one, with the same tokens.",
      {Flag::Time("grace", &o.grace, absl::ZeroDuration(), absl::Hours(24),
                  "how long a replica's open requests may finish there")});
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(RollReplicas(o));
}

}  // namespace somnus::cli

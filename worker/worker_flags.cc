#include "worker/worker_flags.h"

#include "absl/strings/str_cat.h"
#include "base/numa.h"
#include "base/status_macros.h"

namespace somnus {
namespace {

constexpr int64_t kMaxPid = 1 << 22;  // the kernel's own bound
constexpr absl::Duration kLongest = absl::Hours(24 * 100);

FlagGroup AddressFlags(WorkerFlags* f) {
  return {
      "Addresses",
      {
          Flag::Text("coordinator", &f->coordinator,
                     "where the coordinator listens for workers: host:port or unix:/path")
              .Shows("ADDR")
              .Default("as the environment says"),
          Flag::Text("listen", &f->listen, "where this worker listens: host:port or unix:/path")
              .Shows("ADDR")
              .Default("a socket beside the coordinator's, or a free port on the address that leads to it"),
          Flag::Text("health-listen", &f->health_listen,
                     "where this worker answers gRPC health calls (grpc.health.v1.Health), and nothing else, "
                     "without TLS and to everybody: host:port or unix:/path")
              .Shows("ADDR")
              .Default("nowhere; --listen answers the cluster's members"),
          Flag::Text("host", &f->host, "name or address under which the coordinator reaches this worker")
              .Shows("ADDR")
              .Default("SOMNUS_HOST, or where it listens"),
          Flag::Int("rank", &f->rank, 0, 1023, "preferred rank").Default("as the environment says, else any"),
          Flag::Int("spawned-by", &f->spawned_by, 1, kMaxPid,
                    "process of the coordinator, which started this worker itself: the worker leaves with it "
                    "unless --worker-grace is given, and at once on SIGTERM")
              .Shows("PID")
              .Default("somebody else started it"),
      }};
}

FlagGroup DeviceFlags(WorkerFlags* f) {
  const auto set_numa = [f](const std::string& value) {
    f->numa = value;
    return ParseNumaOption(value).status();
  };
  return {
      "Device",
      {
          Flag::OneOf<std::string>(
              "device", &f->device, {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}},
              "where the model runs; auto: as the coordinator says, else on a GPU where there is one"),
          Flag::Int("device-index", &f->device_index, 0, 1023, "which GPU")
              .Default("as the environment says, else 0"),
          Flag::Int("threads", &f->threads, 0, 1024,
                    "compute threads; 0: as the coordinator says, else the cores / the workers of this host"),
          Flag::Int("first-cpu", &f->first_cpu, 0, 65535,
                    "pin thread i to the (first-cpu + i)-th allowed CPU")
              .Default("threads are not pinned"),
          Flag::Custom("numa", "auto|off|NODE", "as the coordinator says", set_numa,
                       "NUMA node whose CPUs and memory this worker uses; off: any, as the kernel chooses"),
          Flag::Int("nice", &f->nice, -20, 19, "niceness of the process"),
      }};
}

FlagGroup TimeFlags(WorkerFlags* f) {
  return {
      "Times and log",
      {
          Flag::Time("heartbeat-interval", &f->heartbeat_interval, absl::ZeroDuration(), absl::Minutes(1),
                     "between heartbeats; 0: what the coordinator asks for"),
          Flag::Time("register-timeout", &f->register_timeout, absl::ZeroDuration(), kLongest,
                     "how long to wait for a coordinator that is not there yet"),
          Flag::Time("worker-grace", &f->worker_grace, absl::Milliseconds(1), kLongest,
                     "how long to wait for a coordinator that is gone, until it, or its successor, replies")
              .Default("30s; a worker that the coordinator itself started leaves at once")
              .Alias("worker-grace-s")
              .Alias("orphan-grace"),
          Flag::Time("term-grace", &f->term_grace, absl::ZeroDuration(), kLongest,
                     "after SIGTERM, how long to wait for the coordinator to send this worker away: cluster "
                     "managers signal both at once, and the coordinator still drains"),
          Flag::Time(
              "liveness-timeout", &f->liveness_timeout, absl::ZeroDuration(), kLongest,
              "gRPC health is NOT_SERVING, and systemd's watchdog hears nothing, once a thread of this "
              "worker has given no sign of life for that long, beyond what its work may take: a step "
              "--step-timeout, a call of the coordinator 2h; 0: never"),
          Flag::Time("step-timeout", &f->step_timeout, absl::Milliseconds(1), kLongest,
                     "a step that takes longer hangs; no less than the coordinator's flag of this name"),
          Flag::Text("log-name", &f->log_name,
                     "of the model or replica that the worker belongs to, in each line of its log")
              .Shows("NAME"),
          Flag::OneOf<std::string>(
              "log-level", &f->log_level,
              {{"debug", "debug"}, {"info", "info"}, {"warning", "warning"}, {"error", "error"}},
              "what is logged"),
          Flag::Bytes(
              "log-queue-bytes", &f->log_queue_bytes, 1 << 10, int64_t{1} << 30,
              "of lines that wait for a slow reader of the log; lines beyond are dropped and counted"),
      }};
}

// Moves what was found into a flag that was not given; drops it where the flag goes before it.
template <typename T, typename V>
void Take(std::optional<Found<T>>* found, bool given, V* flag) {
  if (given) found->reset();
  if (found->has_value()) *flag = (*found)->value;
}

}  // namespace

FlagTable WorkerFlagTable(WorkerFlags* flags) {
  FlagTable table;
  table.program = "worker";
  table.usage = "worker [--coordinator=ADDR] [flags]";
  table.about = "One rank of a Somnus model. How it runs the model is the coordinator's to say.";
  table.groups = {AddressFlags(flags), ClusterTrustFlags(&flags->trust), DeviceFlags(flags),
                  TimeFlags(flags)};
  return table;
}

absl::StatusOr<Discovery> FillFromEnvironment(const Environment& environment, WorkerFlags* flags) {
  ASSIGN_OR_RETURN(Discovery found, Discover(environment));
  found.world_size.reset();  // the coordinator's to know
  if (!flags->coordinator.empty()) found.coordinator.reset();
  if (found.coordinator.has_value()) flags->coordinator = found.coordinator->value.Text();
  Take(&found.rank, flags->rank.has_value(), &flags->rank);
  Take(&found.device_index, flags->device_index.has_value(), &flags->device_index);
  Take(&found.host, !flags->host.empty(), &flags->host);
  if (!flags->coordinator.empty()) return found;
  const std::string known = DescribeDiscovery(found);
  return absl::InvalidArgumentError(
      absl::StrCat("--coordinator: host:port or unix:/path is required; the environment tells none",
                   known.empty() ? "" : ": ", known));
}

}  // namespace somnus

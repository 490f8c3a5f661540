#pragma once
// The one state of an engine, and what each state means. Admission, health, is_sleeping and metrics all read
// this state; nothing else says whether a model can serve.
//
//   state          new requests   ready  live  is_sleeping  memory
//   loading        refused        no     yes   no           being loaded
//   awake          queued, run    yes    yes   no           all resident
//   pausing        queued         no     yes   no           all resident; open requests go on to their end
//   paused         queued         no     yes   yes          all resident; nothing is computed
//   falling_asleep queued         no     yes   no           being released on every rank
//   asleep         queued         no     yes   yes          at least one tag is released on every rank, or
//                                                           the weights are stale
//   waking         queued         no     yes   yes          being mapped, or weights replaced, on every rank
//   recovering     queued         no     yes   as before    lost on a rank, and as before on other ranks
//   draining       refused        no     yes   no           unchanged
//   failed         refused        no     no    no           unknown
//
// Allowed changes:
//   loading        -> awake, asleep (workers that slept were adopted), failed
//   awake          -> pausing, paused, falling_asleep, recovering, draining, failed
//   pausing        -> paused, falling_asleep, awake (resumed), recovering, draining, failed
//   paused         -> awake, falling_asleep, recovering, draining, failed
//   falling_asleep -> asleep, awake or paused (a failed sleep was undone), recovering, draining, failed
//   asleep         -> waking, recovering, draining, failed
//   waking         -> awake, asleep (some tags still sleep, or a failed wake-up was undone), paused (weights
//                     were replaced during a pause), recovering, draining, failed
//   recovering     -> awake, pausing, paused, asleep (as before the loss), draining, failed
//   draining       -> failed
//   failed         -> none: failed is final; only one of several replicas is tried again: recovering
//
// docs/sleep.md draws the changes. A group that is lost while the engine drains is recovered in the state
// draining. A loss during a recovery belongs to that recovery. After a loss has interrupted falling_asleep or
// waking, the engine becomes awake or asleep again, and the call begins anew.
//
// A pause is an operator's word, which the engine remembers beside the tags that sleep (EngineStats::paused):
// a pause ends by Resume, or by a wake-up after which every tag is resident, and by no request. An engine
// that was paused and then sleeps is asleep.
//
// While weights are replaced, by a reload or an update, the engine is waking: from awake or paused the engine
// gets there by falling_asleep and asleep. The engine has no sleep level then, since all memory stays mapped.
//
// An engine that goes from level 1 to level 2 is asleep all the while. "ready" is necessary for health, not
// sufficient: an engine that is awake but whose step hangs is not healthy (Engine::Health).

namespace somnus {

enum class EngineState {
  kLoading,
  kAwake,
  kFallingAsleep,
  kAsleep,
  kWaking,
  kRecovering,
  kDraining,
  kFailed,
  kPausing,
  kPaused
};
inline constexpr EngineState kEngineStates[] = {
    EngineState::kLoading, EngineState::kAwake,      EngineState::kFallingAsleep, EngineState::kAsleep,
    EngineState::kWaking,  EngineState::kRecovering, EngineState::kDraining,      EngineState::kFailed,
    EngineState::kPausing, EngineState::kPaused};

// "loading", "awake", "falling_asleep", ...: the names that the wire, metrics and logs use.
const char* EngineStateName(EngineState state);

bool IsAllowedChange(EngineState from, EngineState to);

// New requests are accepted, into the bounded queue.
bool AdmitsRequests(EngineState state);
bool IsReady(EngineState state);
// False once nothing will ever be served again.
bool IsLive(EngineState state);
// The result of GET /is_sleeping: the sleep, of which a pause is level 0, has been reached, and the wake-up
// has not been completed. A process that waits for the memory may take the memory when the result turns true
// and the level is not 0; a loss of the group does not make the result false, since the memory is not taken
// back. `sleep_level` is the level after the last lifecycle call that has ended, 0 when every tag is
// resident; `paused`: a pause holds.
bool IsSleeping(EngineState state, int sleep_level, bool paused);
// The result of GET /is_paused: nothing is computed by an operator's word, a pause or a sleep.
bool IsPaused(EngineState state, int sleep_level, bool paused);

// Why a request is not served now, as a sentence for clients; empty when the state is ready.
const char* WhyNotReady(EngineState state);

}  // namespace somnus

// The phases of each rank's last transition with their times, as this page has seen them: the server names the phase that is
// under way. A phase that was over before the page looked is left out.
import { seconds } from "./format.js";

const FIRST = ["copy", "map"];  // a transition begins with one of them
const ENDS = ["committed", "aborted"];
const NAMES = { prepared: "waits for the other ranks" };

const seen = new Map();  // by rank: {wakesUp, last, phases: [{name, begin}]}, in seconds since the begin of the transition

export const hasEnded = (transition) => ENDS.includes(transition.phase);
export const phaseName = (transition) => NAMES[transition.phase] ?? transition.phase;

function isAnother(known, transition) {
  return known.wakesUp !== transition.wakes_up || transition.seconds < known.last || (known.ended && !hasEnded(transition));
}

// The phases so far and their times; empty as long as there is only one, whose time is the transition's. `rank`: a name that
// no other rank has, of any model.
export function phasesOf(rank, transition) {
  let known = seen.get(rank);
  if (!known || isAnother(known, transition)) {
    known = { wakesUp: transition.wakes_up, phases: [] };
    seen.set(rank, known);
  }
  known.last = transition.seconds;
  known.ended = hasEnded(transition);
  const { phases } = known;
  if (!known.ended && phases[phases.length - 1]?.name !== phaseName(transition)) {
    const isFirst = phases.length === 0 && FIRST.includes(transition.phase);
    phases.push({ name: phaseName(transition), begin: isFirst ? 0 : transition.seconds });
  }
  if (phases.length < 2) return "";
  return phases.map(({ name, begin }, i) => `${name} ${seconds((phases[i + 1]?.begin ?? known.last) - begin)}`).join(", ");
}

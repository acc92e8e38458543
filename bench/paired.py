"""Programs measured in turns within one run: rounds of samples, their medians, and the ratios within a round."""

import statistics


def alternate(arms, rounds):
    """Each arm returns {name: {phase: tokens per second}}; every other round runs backwards, so that drift hits all alike."""
    results = []
    for turn in range(rounds):
        samples = {}
        for measure in arms if turn % 2 == 0 else reversed(arms):
            samples.update(measure())
        results.append(samples)
    return results


def tables(rounds):
    """By phase: medians over rounds, and medians of the ratios within a round, of tersor to its peers and to its own full cache."""
    result = {}
    for phase in dict.fromkeys(phase for sample in rounds[0].values() for phase in sample):
        names = [name for name in rounds[0] if phase in rounds[0][name]]
        medians = {name: statistics.median(r[name][phase] for r in rounds) for name in names}
        ratios = {
            f"{ours} / {peer}": statistics.median(r[ours][phase] / r[peer][phase] for r in rounds)
            for ours in names
            for peer in names
            if ours.startswith("tersor") and peer != ours and (not peer.startswith("tersor") or peer == "tersor full")
        }
        result[phase] = {"medians": medians, "ratios": ratios}
    return result


def show(by_phase):
    width = max(map(len, by_phase), default=0)
    for phase, table in by_phase.items():
        for name, value in table["medians"].items():
            print(f"{phase:{width}} {name:70} {value:8.1f} tok/s")
        for name, ratio in table["ratios"].items():
            print(f"{phase:{width}} {name:70} {ratio:8.2f} x")

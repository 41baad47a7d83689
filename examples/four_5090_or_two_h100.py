"""Four RTX 5090s, two H100s, or rent? This example compares them for many small jobs and for one large job.

Run it with ``python examples/four_5090_or_two_h100.py``. It needs no GPU and no network: speeds are measured
if you have runs, and predicted otherwise. The quoted prices are examples; replace them with yours.
"""

from __future__ import annotations

import gpubench

QUOTES = (
    "4x RTX 5090, 16000 USD, host 4000 USD, 4 years, 60 %",
    "2x H100 PCIe 80GB, 58400 USD, host 5000 USD, 4 years, 60 %",
)
IMAGES = 90 * 1_281_167  # 90 epochs of ImageNet
COLUMNS = [
    "rank",
    "provider",
    "gpu_count",
    "gpu_key",
    "price_usd_per_hour",
    "hours",
    "cost_usd",
    "p_cheapest",
]


def main() -> None:
    """Print the ranking for each kind of work, and when each purchase pays off."""
    for jobs, title in (("independent", "Many jobs, one on each GPU"), ("ddp", "One job over all GPUs")):
        ranking = gpubench.rank(
            "vgg16",
            samples=IMAGES,
            jobs=jobs,
            have=QUOTES,
            gpu=["rtx 5090", "h100"],
            sort="cost",
        )
        print(f"{title}\n{ranking.verdict}\n")
        print(ranking.to_frame()[COLUMNS].head(6).to_string(index=False), end="\n\n")
    for decision in ranking.buy_or_rent:
        hours = decision.break_even_hours
        pays = "never pays off" if hours is None else f"pays off after {hours:,.0f} hours of work"
        print(f"{decision.gpu_count}x {decision.gpu_key}, ${decision.purchase_usd:,.0f}: {pays}")


if __name__ == "__main__":
    main()

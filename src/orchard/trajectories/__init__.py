"""The trajectory record, its append-only store, filters, samples, import and export."""

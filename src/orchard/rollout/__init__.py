"""Task x sandbox x harness x gateway x reward -> trajectory."""

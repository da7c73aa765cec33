"""Reports: a campaign as one page, the papers' tables and figures beside ours."""
